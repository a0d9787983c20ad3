#!/usr/bin/env bash
# Trains on a data set of its own, with the reward function beside it, on this machine's CPU.
# usage: train.sh [HYDRA_OVERRIDE ...]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bash requirements/install.sh .venv
.venv/bin/python examples/data_set/make_data.py outputs/sums
bash quickstart.sh --steps 4 -- \
    data.train_files=outputs/sums/train.parquet \
    data.val_files=outputs/sums/val.parquet \
    reward.custom_reward_function.path=examples/reward/reward.py \
    "$@"
