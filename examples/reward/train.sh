#!/usr/bin/env bash
# Trains with a reward function of one's own, on this machine's CPU.
# usage: train.sh [HYDRA_OVERRIDE ...]
set -euo pipefail

unset CDPATH # with it, `cd` prints
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bash "$root/quickstart.sh" --steps 4 -- \
    reward.custom_reward_function.path="'$root/examples/reward/reward.py'" \
    "$@"
