#!/usr/bin/env bash
# Trains on a data set of its own, with the reward function beside it, on this machine's CPU.
# usage: train.sh [HYDRA_OVERRIDE ...]
set -euo pipefail

unset CDPATH # with it, `cd` prints
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bash "$root/requirements/install.sh" "$root/.venv"
"$root/.venv/bin/python" "$root/examples/data_set/make_data.py" outputs/sums
bash "$root/quickstart.sh" --steps 4 -- \
    data.train_files=outputs/sums/train.parquet \
    data.val_files=outputs/sums/val.parquet \
    reward.custom_reward_function.path="'$root/examples/reward/reward.py'" \
    "$@"
