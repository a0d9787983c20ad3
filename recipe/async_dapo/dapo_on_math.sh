# shellcheck shell=bash
# DAPO on math, the part that does not depend on the model: the scripts test_*.sh beside this file source it. They set
# `model` and `least_nodes` first, add to `overrides`, and end with `start "$@"`.
set -euo pipefail
name=$(basename -- "$0" .sh)
if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  sed -n '2,/^set -/ { /^set -/d; s/^# \{0,1\}//; p; }' "${BASH_SOURCE[1]}" # the comment at the script's head
  exit
fi
named=
for argument in "$@"; do
  if [[ $argument =~ ^[+]{0,2}data[.](train|val)_files= ]]; then named+=${BASH_REMATCH[1]}; fi
done
if [[ $named == *train* && $named == *val* ]]; then
  DATA_HOME=${DATA_HOME:-.} # the user's files take the place of those in it
fi
: "${DATA_HOME:?set DATA_HOME to the folder that prepare_dapo_data.sh has filled, or name data.train_files and data.val_files}"
model_path=${MODEL_PATH:-$model}
nnodes=${NNODES:-$least_nodes}
if [[ ! $nnodes =~ ^[1-9][0-9]*$ ]]; then
  echo "$name: NNODES=$nnodes: must be a number >= 1" >&2
  exit 1
fi
for flag in REHEARSE CHECK; do
  if [[ ! ${!flag:-0} =~ ^[01]$ ]]; then
    echo "$name: $flag=${!flag}: must be 0 or 1" >&2
    exit 1
  fi
done
rehearse=${REHEARSE:-0} check=${CHECK:-0}
if ((nnodes > 1 && !rehearse && !check)); then
  : "${RAY_ADDRESS:?set RAY_ADDRESS to the head of a Ray cluster with NNODES nodes, for example 10.0.0.1:6379}"
  : "${CKPTS_DIR:?set CKPTS_DIR to a folder that all nodes share: each writes a part of every checkpoint}"
fi

# The recipe may have been copied anywhere, under any parent: modules are started as PARENT.FOLDER.NAME. Python finds them
# there first, and then what lies in the folder where the user stands. Relative paths begin at that folder.
unset CDPATH # with it, `cd` prints
data_home=$(cd -- "$DATA_HOME" && pwd)
ckpts_dir=$(realpath --canonicalize-missing -- "${CKPTS_DIR:-checkpoints}")
if [[ -d $model_path ]]; then model_path=$(cd -- "$model_path" && pwd); fi
run=$(basename -- "${model_path,,}") # each model has a folder of checkpoints of its own
recipe_dir=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
parent_dir=$(dirname -- "$recipe_dir")
other=$PWD/$(basename -- "$parent_dir")
if [[ -e $other/__init__.py && ! $other -ef $parent_dir ]]; then
  echo "$name: Python would take the package $other for that of the recipe, $parent_dir; call it from another folder" >&2
  exit 1
fi
PYTHONPATH=$(dirname -- "$parent_dir"):$PWD${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH

max_prompt_tok=1024
max_response_tok=8192
max_trajectory_tok=$((max_prompt_tok + max_response_tok))

overrides=(
  # Data: the prompts of DAPO; AIME 2024 is validated 32 times per problem, as DAPO reports it.
  data.train_files="'$data_home/dapo-math-17k.parquet'"
  data.val_files="'$data_home/aime-2024.parquet'"
  data.max_prompt_length="$max_prompt_tok"
  data.max_response_length="$max_response_tok"
  data.train_batch_size=512

  # How many prompts are held and how many trajectories run at once follows the share of valid groups and the engines.
  actor_rollout_ref.rollout.agent.num_workers=8
  actor_rollout_ref.rollout.n=16
  algorithm.filter_groups.enable=True
  algorithm.filter_groups.metric=acc
  algorithm.filter_groups.max_num_gen_batches=10

  # Reward: rule-based, with DAPO's soft overlong punishment over the last 4096 tokens.
  reward.reward_manager.name=dapo
  reward.reward_kwargs.overlong_buffer_cfg.enable=True
  reward.reward_kwargs.overlong_buffer_cfg.len=4096
  reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0

  # Loss: GRPO advantage, token mean, clip higher, no KL, no entropy bonus.
  algorithm.adv_estimator=grpo
  algorithm.use_kl_in_reward=False
  actor_rollout_ref.actor.use_kl_loss=False
  actor_rollout_ref.actor.loss_agg_mode=token-mean
  actor_rollout_ref.actor.clip_ratio_low=0.2
  actor_rollout_ref.actor.clip_ratio_high=0.28
  actor_rollout_ref.actor.clip_ratio_c=10.0
  actor_rollout_ref.actor.entropy_coeff=0

  # Optimizer: 512 / 32 = 16 updates per step.
  actor_rollout_ref.actor.ppo_mini_batch_size=32
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.optim.lr_warmup_steps=10
  actor_rollout_ref.actor.optim.weight_decay=0.1
  actor_rollout_ref.actor.optim.clip_grad=1.0

  actor_rollout_ref.model.path="'$model_path'"

  # Training memory: a micro batch packs two of the longest trajectories; entropy is computed in chunks, for the 152k words
  # of the head.
  actor_rollout_ref.model.use_remove_padding=True
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu="$((2 * max_trajectory_tok))"
  actor_rollout_ref.actor.entropy_from_logits_with_chunking=True

  # Engines: all of the KV cache is freed while the actor trains.
  actor_rollout_ref.rollout.free_cache_engine=True
  actor_rollout_ref.rollout.max_model_len="$max_trajectory_tok"
  actor_rollout_ref.rollout.max_num_seqs=256

  # Sampling.
  actor_rollout_ref.rollout.temperature=1.0
  actor_rollout_ref.rollout.top_p=1.0
  actor_rollout_ref.rollout.val_kwargs.n=32
  actor_rollout_ref.rollout.val_kwargs.temperature=1.0
  actor_rollout_ref.rollout.val_kwargs.top_p=0.7
  actor_rollout_ref.rollout.val_kwargs.do_sample=True

  # Run: 33 steps count as an epoch, as in verl; the filter takes more prompts. With trainer.total_training_steps these count instead of the epochs.
  trainer.nnodes="$nnodes"
  trainer.n_gpus_per_node=8
  trainer.total_epochs=10
  trainer.val_before_train=True
  trainer.test_freq=5
  trainer.save_freq=10
  trainer.max_actor_ckpt_to_keep=3
  trainer.default_local_dir="'$ckpts_dir/$run'"
  trainer.project_name=async_dapo
  trainer.experiment_name="'$run'"
)

if [[ -z ${RAY_ADDRESS:-} ]] && ((nnodes == 1 && !rehearse && !check)); then
  overrides+=(+ray_kwargs.ray_init.address=local) # else Ray would join one that somebody has started on this machine
fi

# start ARGUMENTS: train, rehearse or check. Where the lab lies beside the recipe, training ends with a report page.
start() {
  local parent recipe module
  parent=$(basename -- "$parent_dir")
  recipe=$parent.$(basename -- "$recipe_dir")
  if ((rehearse)); then
    if [[ ! -d $parent_dir/async_dapo_lab ]]; then
      echo "$name: REHEARSE=1: needs the lab; copy async_dapo_lab beside $recipe_dir" >&2
      exit 1
    fi
    module=$parent.async_dapo_lab.rehearse
  elif [[ -d $parent_dir/async_dapo_lab ]]; then
    module=$parent.async_dapo_lab.$( ((check)) && echo check || echo train)
  else
    module=$recipe.$( ((check)) && echo check || echo main_async_dapo)
  fi
  exec python3 -P -m "$module" "${overrides[@]}" "$@"
}
