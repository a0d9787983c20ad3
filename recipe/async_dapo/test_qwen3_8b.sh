#!/usr/bin/env bash
# Trains Qwen3-8B-Base with DAPO and early-stopped rollouts, on one or several nodes of 8 GPUs with 80 GB:
#
#   DATA_HOME=$HOME/data bash test_qwen3_8b.sh
#   DATA_HOME=/shared/data CKPTS_DIR=/shared/checkpoints NNODES=4 RAY_ADDRESS=10.0.0.1:6379 bash test_qwen3_8b.sh
#
# Prepare the data with prepare_dapo_data.sh first. Arguments are further Hydra overrides. Relative paths begin at the
# folder in which the script is called. The environment decides:
#
#   DATA_HOME    folder with dapo-math-17k.parquet and aime-2024.parquet, the same on every node; required, unless the
#                arguments name data.train_files and data.val_files
#   MODEL_PATH   model folder, the same on every node, or name on the Hugging Face hub [Qwen/Qwen3-8B-Base]
#   CKPTS_DIR    folder of the checkpoints, 100 GB each: three, and a fourth while it is written, in a folder that is
#                named after the model; with NNODES > 1 required, and shared by all nodes [checkpoints]
#   NNODES       nodes to train on [1]
#   RAY_ADDRESS  running Ray cluster to join; required if NNODES > 1, else a new local one is started []
#   CHECK        1 = check the options, data and model of this run, and start nothing [0]
#   REHEARSE     1 = rehearse this run on this machine, without GPUs and weights (docs/plan_check_rehearse.md) [0]
set -euo pipefail
model=Qwen/Qwen3-8B-Base least_nodes=1
# shellcheck source-path=SCRIPTDIR
source "$(dirname -- "${BASH_SOURCE[0]}")/dapo_on_math.sh"

overrides+=(
  # Training memory: fp32 weights and Adam state are 98 GB over all GPUs; in host memory, while engines generate, 131.
  actor_rollout_ref.model.enable_gradient_checkpointing=True
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.actor.fsdp_config.param_offload=True
  actor_rollout_ref.actor.fsdp_config.optimizer_offload=True

  # Engines: one per GPU, as 16 GB of weights leave room for about 290k tokens of KV cache.
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.gpu_memory_utilization=0.8
)
start "$@"
