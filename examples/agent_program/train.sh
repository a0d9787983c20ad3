#!/usr/bin/env bash
# Trains an agent that speaks OpenAI's API, on this machine's CPU.
# usage: train.sh [HYDRA_OVERRIDE ...]
set -euo pipefail

unset CDPATH # with it, `cd` prints
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bash "$root/quickstart.sh" --steps 4 -- \
    actor_rollout_ref.rollout.agent.default_agent_loop=solver \
    actor_rollout_ref.rollout.agent.agent_loop_config_path="'$root/examples/agent_program/agents.yaml'" \
    "$@"
