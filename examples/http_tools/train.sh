#!/usr/bin/env bash
# Trains with two tools that ask services over HTTP, of which one is broken, on this machine's CPU.
# usage: train.sh [HYDRA_OVERRIDE ...]
set -euo pipefail

unset CDPATH # with it, `cd` prints
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bash "$root/examples/beside.sh" TOOLS_SERVICE "$root/examples/http_tools/service.py" bash "$root/quickstart.sh" --steps 4 -- \
    actor_rollout_ref.rollout.agent.default_agent_loop=working_tool_agent \
    actor_rollout_ref.rollout.agent.agent_loop_config_path="'$root/examples/tools/agent_loops.yaml'" \
    actor_rollout_ref.rollout.multi_turn.function_tool_path="'$root/examples/http_tools/tools.py'" \
    actor_rollout_ref.rollout.multi_turn.format=working \
    actor_rollout_ref.rollout.multi_turn.max_assistant_turns=2 \
    reward.custom_reward_function.path="'$root/examples/tools/tiny_model.py'" \
    "$@"
