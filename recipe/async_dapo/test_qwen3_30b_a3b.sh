#!/usr/bin/env bash
# Trains Qwen3-30B-A3B-Base, a mixture of experts, with DAPO and early-stopped rollouts; Megatron computes the updates.
# Needs two or more nodes of 8 GPUs with 80 GB, and on each what verl[megatron] names, with Transformer Engine and
# NVIDIA's Apex. Nobody has run this script on GPUs yet: its options pass the checks.
#
#   DATA_HOME=/shared/data CKPTS_DIR=/shared/checkpoints RAY_ADDRESS=10.0.0.1:6379 bash test_qwen3_30b_a3b.sh
#
# Prepare the data with prepare_dapo_data.sh first. Arguments are further Hydra overrides. The environment decides, as
# for test_qwen3_8b.sh: DATA_HOME, MODEL_PATH [Qwen/Qwen3-30B-A3B-Base], CKPTS_DIR (400 GB a checkpoint), NNODES [2],
# RAY_ADDRESS, CHECK, REHEARSE.
set -euo pipefail
model=Qwen/Qwen3-30B-A3B-Base least_nodes=2
# shellcheck source-path=SCRIPTDIR
source "$(dirname -- "${BASH_SOURCE[0]}")/dapo_on_math.sh"

overrides+=(
  # Training: each GPU holds a quarter of the attention and an eighth of the experts, and updates a sixteenth of Adam's
  # state; all of it is in host memory while engines generate. Activations are computed again.
  model_engine=megatron
  actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4
  actor_rollout_ref.actor.megatron.expert_model_parallel_size=8
  actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1
  actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full
  actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform
  actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1
  actor_rollout_ref.actor.megatron.param_offload=True
  actor_rollout_ref.actor.megatron.optimizer_offload=True

  # Each token takes the experts again that the engine has sent it to: 384 bytes a token.
  actor_rollout_ref.actor.megatron.router_replay.mode=R3
  actor_rollout_ref.rollout.enable_rollout_routing_replay=True

  # Engines: 61 GB of weights over two GPUs.
  actor_rollout_ref.rollout.tensor_model_parallel_size=2
  actor_rollout_ref.rollout.gpu_memory_utilization=0.75
)
start "$@"
