#!/usr/bin/env bash
# Trains with verl's tool agent, on this machine's CPU.
# usage: train.sh [HYDRA_OVERRIDE ...]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bash quickstart.sh --steps 4 -- \
    actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent \
    actor_rollout_ref.rollout.multi_turn.function_tool_path=examples/tools/tools.py \
    actor_rollout_ref.rollout.multi_turn.format=hermes \
    "$@"
