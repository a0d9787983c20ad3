#!/usr/bin/env bash
# Trains with a judge that runs beside it, on this machine's CPU.
# usage: train.sh [HYDRA_OVERRIDE ...]
set -euo pipefail

unset CDPATH # with it, `cd` prints
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bash "$root/examples/beside.sh" JUDGE_URL "$root/examples/judged_reward/judge.py" bash "$root/quickstart.sh" --steps 4 -- \
    reward.custom_reward_function.path="'$root/examples/judged_reward/judged_reward.py'" \
    '+reward.custom_reward_function.reward_kwargs.judge_url=${oc.env:JUDGE_URL}' \
    "$@"
