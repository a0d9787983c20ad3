#!/usr/bin/env bash
# Trains in two turns, on this machine's CPU; with default_agent_loop=guessing or coding in the loops beside it.
# usage: train.sh [HYDRA_OVERRIDE ...]
set -euo pipefail

unset CDPATH # with it, `cd` prints
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# The last number of the second answer counts: the model has to learn to answer again at all.
bash "$root/quickstart.sh" --steps 4 -- \
    actor_rollout_ref.rollout.agent.default_agent_loop=checked_answer \
    actor_rollout_ref.rollout.agent.agent_loop_config_path="'$root/examples/agent_loop/agent_loops.yaml'" \
    reward.custom_reward_function.path="'$root/examples/reward/reward.py'" \
    "$@"
