#!/usr/bin/env bash
# Trains with a judge that runs beside it, on this machine's CPU.
# usage: train.sh [HYDRA_OVERRIDE ...]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec 3< <(exec python3 examples/judged_reward/judge.py 0) # takes a free port, and says where it is
beside=$!
trap 'kill "$beside"' EXIT
read -r _ JUDGE_URL <&3
bash quickstart.sh --steps 4 -- \
    reward.custom_reward_function.path=examples/judged_reward/judged_reward.py \
    +reward.custom_reward_function.reward_kwargs.judge_url="$JUDGE_URL" \
    "$@"
