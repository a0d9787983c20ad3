#!/usr/bin/env bash
# Trains Qwen3-0.6B-Base on GSM8K with DAPO and early-stopped rollouts, on one GPU with 24 GB or more. Nobody has run this
# script on a GPU yet: its options pass the checks, and a tiny model has trained with them on a CPU.
#
#   DATA_HOME=$HOME/data bash test_qwen3_0.6b.sh
#
# Prepare the data so, with the lab beside the recipe:
#
#   hf download openai/gsm8k --repo-type dataset --local-dir gsm8k
#   python -m recipe.async_dapo_lab.data gsm8k/main/train-00000-of-00001.parquet --answer-after '####' --held-out 512 \
#     --source openai/gsm8k --system 'Think step by step and end with "#### " and the number.' --output $DATA_HOME/gsm8k
#
# Arguments are further Hydra overrides. The environment decides, as for test_qwen3_8b.sh: DATA_HOME (with
# gsm8k/train.parquet and gsm8k/val.parquet), MODEL_PATH [Qwen/Qwen3-0.6B-Base], CKPTS_DIR (7 GB a checkpoint), CHECK, REHEARSE.
set -euo pipefail
model=Qwen/Qwen3-0.6B-Base least_nodes=1
# shellcheck source-path=SCRIPTDIR
source "$(dirname -- "${BASH_SOURCE[0]}")/dapo_on_math.sh"

overrides+=(
  # Data: verl's reward for openai/gsm8k wants the number behind ####, as the system prompt says.
  data.train_files="'$data_home/gsm8k/train.parquet'"
  data.val_files="'$data_home/gsm8k/val.parquet'"
  data.max_prompt_length=512
  data.max_response_length=1024
  data.train_batch_size=128

  actor_rollout_ref.rollout.agent.num_workers=2
  actor_rollout_ref.rollout.n=8
  reward.num_workers=2
  reward.reward_kwargs.overlong_buffer_cfg.enable=False

  # Optimizer: 128 / 32 = 4 updates per step.
  actor_rollout_ref.actor.ppo_mini_batch_size=32
  actor_rollout_ref.actor.optim.lr=1e-6

  # Training memory: fp32 weights, gradients and Adam state are 9.5 GB; weights and Adam state are in host memory while
  # engines generate. The head has 152k words: a micro batch of 6,144 tokens takes about 4 GB.
  actor_rollout_ref.model.enable_gradient_checkpointing=True
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.actor.fsdp_config.param_offload=True
  actor_rollout_ref.actor.fsdp_config.optimizer_offload=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=6144

  # Engine.
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6
  actor_rollout_ref.rollout.max_model_len=1536
  actor_rollout_ref.rollout.max_num_seqs=256
  actor_rollout_ref.rollout.val_kwargs.n=1

  # Run: 55 steps are an epoch without a filter.
  trainer.n_gpus_per_node=1
  trainer.total_epochs=4
  trainer.test_freq=10
  trainer.save_freq=20
  trainer.max_actor_ckpt_to_keep=2
)
start "$@"
