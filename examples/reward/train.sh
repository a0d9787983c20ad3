#!/usr/bin/env bash
# Trains with a reward function of one's own, on this machine's CPU.
# usage: train.sh [HYDRA_OVERRIDE ...]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bash quickstart.sh --steps 4 -- \
    reward.custom_reward_function.path=examples/reward/reward.py \
    "$@"
