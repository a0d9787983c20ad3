#!/usr/bin/env bash
# Trains in two turns, on this machine's CPU; with default_agent_loop=guessing or coding in the loops beside it.
# usage: train.sh [HYDRA_OVERRIDE ...]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# The quick start's model was never asked to check an answer: all are wrong, and the filter would remove every group.
bash quickstart.sh --steps 4 -- \
    actor_rollout_ref.rollout.agent.default_agent_loop=checked_answer \
    actor_rollout_ref.rollout.agent.agent_loop_config_path=examples/agent_loop/agent_loops.yaml \
    algorithm.filter_groups.enable=False \
    "$@"
