"""Options that are wrong, or do not go together, are refused before Ray starts: with key, value and remedy."""

import re
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from recipe.async_dapo.config import AsyncDAPOConfig, ConfigError
from recipe.async_dapo.startup import engine_check, trainer_check
from recipe.async_dapo.startup.overrides import compose_overrides
from recipe.async_dapo.startup.preflight import check_all, findings
from recipe.async_dapo.startup.verl_options import FIXED, IGNORED, SHADOWED
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

from ..support.composed_runs import ComposeRun, compose_run, refusal, valid_overrides

# A row is `overrides -> how the message begins`. A message that begins with a colon is about one of the overrides as it
# stands; `...` is any text. Keys are shortened as in `FULL`.
REFUSED = """
rollout.top_p=0.7 -> : must be 1.0: log-probs are
rollout.top_k=20 -> : must be -1 or 0: log-probs are
algorithm.use_kl_in_reward=True -> : tokens older than async_dapo.max_stale
correction.rollout_is_threshold=null -> correction.rollout_is_threshold=None: verl would leave the weights out
async_dapo.max_concurrent_prompts=0 -> : must be >= 1
async_dapo.max_loads_per_server=0 -> : must be >= 1
async_dapo.max_loads_per_server=-1 -> : must be >= 1
async_dapo.over_sampling_batch_size=0 -> : must be >= 1
async_dapo.over_sampling_batch_size=null -> async_dapo.over_sampling_batch_size=None: must be a whole number, or auto
async_dapo.rollout_pool_size=0 -> : must be >= 1
async_dapo.recorder=nowhere.Recorder -> : no such module; name a class that Python finds
async_dapo.rollout_pool_size=much -> : must be a whole number, or auto
async_dapo.max_concurrent_prompts=many -> : must be a whole number
async_dapo.max_concurrent_prompts=null -> async_dapo.max_concurrent_prompts=None: must be a whole number
async_dapo.drafts=ngram -> : must be one of suffix
async_dapo.stop_rule=soon -> : must be one of first_completed, fifo, drain
async_dapo.stop_rule=fifoo -> ... did you mean fifo?
async_dapo.rollout_strategy=greedy -> : must be one of discard
async_dapo.rollout_strategy=partail -> ... did you mean partial?
async_dapo.rollout_strategy=partial_stale_kv -> rollout.free_cache_engine=True: async_dapo.rollout_strategy=... keeps
+rollout.enable_sleep_mode=False -> : engines cannot sleep
+async_dapo.stop_rules=fifo -> : unknown option; known:
+async_dapo.reward.retries=2 -> : unknown option; known:
+async_dapo.max_stalenes=3 -> ... did you mean max_staleness?
~async_dapo.engine_timeout_s -> async_dapo.engine_timeout_s=<missing>: add it
async_dapo.engine_timeout_s=0 -> async_dapo.engine_timeout_s=0.0: must be > 0 seconds
async_dapo.reward.timeout_s=0 -> async_dapo.reward.timeout_s=0.0: must be > 0 seconds
async_dapo.reward.on_error=ignore -> : must be one of drop_group, raise
async_dapo.reward.processes=-1 -> : must be >= 0
async_dapo.selection.by=luck -> : must be one of uniform, history
async_dapo.selection.by=history algorithm.filter_groups.enable=False -> : a history counts answers by
rollout.n=1 -> : a group of one never varies
algorithm.filter_groups.metric=reward -> : the filter judges a raw metric
algorithm.filter_groups.metric=seq_reward -> ... a raw metric of the reward function, such as acc
algorithm.adv_estimator=remax -> : must be one of
algorithm.adv_estimator=grop -> : must be one of ... did you mean grpo?
algorithm.use_pf_ppo=True -> : with adv_estimator=gae verl's V1 trainer gives trajectories the advantages of others
gae critic.model.path=a/model algorithm.use_pf_ppo=True -> : with adv_estimator=gae verl's V1 trainer gives
algorithm.adv_estimator=opo -> : its baseline weighs rewards by lengths, which lose the tokens older than ...=4; set
actor.loss_agg_mode=seq-mean-token-sum-norm
  -> actor.loss_scale_factor=None: with loss_agg_mode=seq-mean-token-sum-norm ...; set it to data.max_response_length,
    which is 32
actor_rollout_ref.model.mtp.enable=True actor_rollout_ref.model.mtp.enable_rollout=True
  -> rollout.load_format=dummy: with mtp.enable_rollout=True the model's own head drafts, and FSDP neither trains nor
data.train_files=/no/train.parquet -> : no such file; make it with prepare_dapo_data.sh, or correct the path
data.val_files=[/no/val.parquet] -> data.val_files=/no/val.parquet: no such file
data.train_files=null -> data.train_files=None: must be a file or a list of files
data.train_files=[] -> : must be a file or a list of files
data.train_files=[null] -> data.train_files=[None]: must be a file or a list of files
data.train_files=/etc/passwd -> : must end in .parquet, .json or .jsonl
data.train_max_samples=9 -> data.seed=None: verl chooses data.train_max_samples=9 prompts at every start, others when
data.val_max_samples=1 -> data.seed=None: verl chooses data.val_max_samples=1 prompts at every start, others when the
actor_rollout_ref.model.path=/no/such/model -> : no such folder
actor_rollout_ref.model.path=./no/such/model -> : no such folder
trainer.rollout_data_dir=/dev/null/outputs -> : /dev/null is a file, so no folder can be made there
trainer.validation_data_dir=/dev/null/outputs -> : /dev/null is a file
trainer.default_local_dir=/dev/null/outputs trainer.save_freq=5 -> : /dev/null is a file
trainer.critic_warmup=5 -> : there is no critic
trainer.resume_mode=resume_path -> trainer.resume_from_path=None: set it to a checkpoint folder
trainer.resume_mode=resume_path trainer.resume_from_path=/nowhere/global_step_3 -> : /nowhere/global_step_3
trainer.resume_from_path=/nowhere/global_step_3 -> : is ignored with trainer.resume_mode=auto
trainer.val_only=True trainer.val_before_train=False -> : is ignored without trainer.val_before_train=True
trainer.default_hdfs_dir=hdfs://run -> : must be null: verl copies the model there, but ... trainer.default_local_dir
trainer.logger=[console,wandbb] -> trainer.logger=wandbb: must be one of wandb, mlflow,
trainer.logger=tensorbord -> : must be one of ... did you mean tensorboard?
async_dapo.max_concurrent_prompts=50000 async_dapo.rollout_pool_size=null -> : 8 workers could wait with 1600000
reward.reward_manager.name=dapoo -> : must be one of ... with reward.reward_manager.source=importlib and ...
    did you mean dapo?
reward.reward_model.enable=True -> reward.reward_model.enable_resource_pool=False: a reward model on the trainer's GPUs
reward.reward_model.enable_resource_pool=True -> : would reserve GPUs for nothing
reward.reward_model.enable=True reward.reward_model.enable_resource_pool=True
  -> reward.reward_model.rollout.free_cache_engine=True: verl would put the reward model's engines to sleep
reward.reward_model.enable=True reward.reward_model.enable_resource_pool=True
    reward.reward_model.rollout.free_cache_engine=False reward.custom_reward_function.path=null
  -> reward.custom_reward_function.path=None: verl's agent loops cannot read the score of a reward model alone
overlong.enable=True overlong.len=0 -> : must be in 1..32; set overlong_buffer_cfg.enable=False
overlong.enable=True reward.reward_manager.name=naive -> : is ignored by reward.reward_manager.name=naive
overlong.enable=True reward.reward_kwargs.max_resp_len=64 -> : must equal data.max_response_length=32
rollout.tensor_model_parallel_size=2 -> : an engine takes 2 GPUs, which does not divide the 1
async_dapo.placement=apart -> : must be one of colocated, separate
async_dapo.placement=separate -> rollout.nnodes=0: must be >= 1: async_dapo.placement=separate runs engines there
rollout.nnodes=1 -> : with async_dapo.placement=colocated engines share the trainer's GPUs; set
async_dapo.placement=separate rollout.nnodes=1 rollout.n_gpus_per_node=3 rollout.tensor_model_parallel_size=2
  -> : an engine takes 2 GPUs, which does not divide the 3 of actor_rollout_ref.rollout.nnodes
async_dapo.placement=separate async_dapo.rollout_strategy=discard -> async_dapo.rollout_strategy=discard: with
async_dapo.placement=separate async_dapo.max_staleness=0 -> async_dapo.max_staleness=0: with async_dapo.placement
async_dapo.placement=separate async_dapo.stop_rule=fifo -> async_dapo.stop_rule=fifo: with async_dapo.placement
async_dapo.placement=separate async_dapo.max_tokens_per_round=16 -> async_dapo.max_tokens_per_round=16: with
async_dapo.placement=separate async_dapo.over_sampling_batch_size=2 -> async_dapo.over_sampling_batch_size=2: with
async_dapo.placement=separate rollout.nnodes=1 rollout.n_gpus_per_node=1 actor_rollout_ref.model.lora_rank=8
  -> : with async_dapo.placement=separate engines get whole weights
actor_rollout_ref.model.lora.rank=8 -> : is Megatron's: with actor_rollout_ref.model.lora_rank=0 FSDP trains all weights
actor_rollout_ref.model.lora_adapter_path=/an/adapter -> : would be ignored: with ...lora_rank=0 FSDP trains all
actor.fsdp_config.ulysses_sequence_parallel_size=2 trainer.n_gpus_per_node=2
    ++actor_rollout_ref.model.override_config.attn_implementation=sdpa
  -> actor.fsdp_config.ulysses_sequence_parallel_size=2: only flash attention attends over all ranks of a sequence
actor.ulysses_sequence_parallel_size=2 trainer.n_gpus_per_node=2
    ++actor_rollout_ref.model.override_config.attn_implementation=sdpa
  -> actor.fsdp_config.ulysses_sequence_parallel_size=2: only flash attention attends over all ranks of a sequence
actor.fsdp_config.ulysses_sequence_parallel_size=2 trainer.n_gpus_per_node=2
    actor_rollout_ref.model.use_remove_padding=False
  -> actor.fsdp_config.ulysses_sequence_parallel_size=2: sequences are split only where they are packed
rollout.response_length=16 -> : must equal data.max_response_length=32, which it follows
rollout.response_length=64 -> : must equal data.max_response_length=32, which it follows
rollout.prompt_length=null -> rollout.prompt_length=None: must equal data.max_prompt_length=32, which it follows
rollout.gpu_memory_utilization=1.5 -> : must be > 0 and <= 1
trainer.max_critic_ckpt_to_keep=1 gae critic.model.path=a/model -> : is ignored: a checkpoint stays or goes as a whole
rollout.max_model_len=63 -> : must be >= 64
rollout.max_model_len=1025 -> : the model has 1024 positions
data.max_response_length=993 -> rollout.max_model_len=None: the model has 1024 positions
rollout.val_kwargs.n=4 -> rollout.val_kwargs.temperature=0: gives the same answer 4 times
rollout.val_kwargs.temperature=1 -> rollout.val_kwargs.do_sample=False: verl ignores it, and ... samples
rollout.val_kwargs.n=100000 rollout.val_kwargs.temperature=1.0 rollout.val_kwargs.do_sample=True
  -> transfer_queue.backend.SimpleStorage.total_storage_size=100000: must be >=
transfer_queue.backend.SimpleStorage.total_storage_size=95 -> : must be >= 96 trajectories
data.val_max_samples=${nowhere} -> data.val_max_samples=<unreadable>:
actor.policy_loss.loss_mode=bypass_mode -> : would take recomputed log-probs
actor.policy_loss.loss_mode=vanila -> : must be one of
actor.use_kl_loss=True actor.kl_loss_type=low_var -> : must be one of
actor.loss_agg_mode=mean -> verl=validate_config: verl refuses these options: ...Invalid loss_agg_mode: mean
actor.optim.learning_rate=1e-6 -> verl=validate_config: verl refuses ... unexpected keyword argument 'learning_rate'
++actor_rollout_ref.model.lora_rnk=8
  -> actor_rollout_ref.model.path=...: verl cannot load it: TypeError: ... unexpected keyword argument 'lora_rnk'
rollout.temprature=0.7 -> verl=actor_rollout_ref.rollout: verl refuses ... unexpected keyword argument 'temprature'
rollout.pipeline_model_parallel_size=2 trainer.n_gpus_per_node=2
  -> verl=actor_rollout_ref.rollout: verl refuses ... pipeline_model_parallel_size > 1 yet
actor.ppo_micro_batch_size=8 -> verl=validate_config: verl refuses ...ppo_micro_batch_size' AND
rollout.log_prob_micro_batch_size=8 -> verl=validate_config: verl refuses ...log_prob_micro_batch_size' AND
actor.checkpoint.async_save=True -> : must be False: the end of a save would not be known
actor.checkpoint.load_contents=[model] -> actor.checkpoint.load_contents=['model']: must hold model, optimizer, extra
trainer.save_freq=10 actor.checkpoint.save_contents=[model,hf_model] -> actor.checkpoint.save_contents=...: must hold
gae critic.model.path=a/model trainer.save_freq=10 critic.checkpoint.save_contents=[hf_model]
  -> critic.checkpoint.save_contents=['hf_model']: must hold model, optimizer, extra
gae critic.model.path=a/model critic.ppo_mini_batch_size=6 -> : must divide data.train_batch_size=8
gae critic.model.path=a/model critic.ppo_infer_max_token_len_per_gpu=63 -> : must be >= 64
gae critic.model.path=a/model data.max_response_length=32737
  -> critic.ppo_infer_max_token_len_per_gpu=32768: must be >= 32769
gae critic.model.path=/no/critic critic.strategy=fsdp2 -> verl=validate_config: verl refuses ...: '/no/critic'.
data.train_batch_size=12 -> actor.ppo_mini_batch_size=8: must divide data.train_batch_size=12
actor.ppo_mini_batch_size=1 trainer.n_gpus_per_node=8
  -> : times ...n=4 trajectories must be a multiple of the 8 data-parallel ranks; set a multiple of 2
actor.ppo_micro_batch_size_per_gpu=null -> actor.ppo_micro_batch_size_per_gpu=None: must divide the 32 trajectories
rollout.log_prob_micro_batch_size_per_gpu=5 -> : must divide the 32 trajectories
actor.use_dynamic_bsz=True actor.ppo_max_token_len_per_gpu=63 -> : must be >= 64
actor.use_kl_loss=True ref.log_prob_micro_batch_size_per_gpu=5
  -> : must divide the 32 trajectories that a rank gets; or set actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True
actor.use_kl_loss=True ref.log_prob_use_dynamic_bsz=True ref.log_prob_max_token_len_per_gpu=63 -> : must be >= 64
async_dapo.max_loads_per_server=1000 rollout.max_num_seqs=512 -> : must be below 1000
async_dapo.max_loads_per_server=2016 rollout.max_num_seqs=2000 -> : must be below 2016
async_dapo.max_loads_per_server=4112 rollout.max_num_seqs=512 rollout.data_parallel_size=8 trainer.n_gpus_per_node=8
  -> : must be below 4112
correction.loss_type=reinforce -> : acts with async_dapo.importance_sampling=bypass only
correction.bypass_mode=True correction.rollout_is=token -> : PPO's ratio is the importance weight in bypass mode
correction.bypass_mode=True async_dapo.importance_sampling=decoupled
  -> : contradicts async_dapo.importance_sampling=decoupled
correction.rollout_is=tokens -> : must be one of token, sequence; did you mean token?
correction.rollout_is=geometric -> : must be one of token, sequence
correction.rollout_is_threshold=0
  -> : verl says: rollout_is_threshold upper bound must be positive, got 0.0; set a number > 0, or lower_upper, such as
correction.rollout_rs='token_k1,geometric' correction.rollout_rs_threshold=0.5_2.0
  -> correction.rollout_rs=geometric: must be one of seq_max_k2, seq_max_k3,
correction.rollout_rs=token_k1 correction.rollout_rs_threshold=0.5
  -> : verl says: ... must be lower <= upper, got 0.5; set a number > 0 for each mask of rollout_rs, or lower_upper
correction.rollout_rs=token_k3 -> correction.rollout_rs_threshold=None: verl says: rollout_rs_threshold must be provided
bypass correction.loss_type=reinforce -> correction.rollout_is=None: loss_type=reinforce has no ratio of its own
bypass actor.policy_loss.loss_mode=gpg -> : has no ratio
bypass correction.loss_type=ppo-clip -> : must be one of ppo_clip, reinforce; did you mean ppo_clip?
bypass correction.loss_type=reinforce correction.rollout_is=token correction.rollout_is_threshold=null
  -> correction.rollout_is_threshold=None: verl would leave the weights out
bypass async_dapo.max_tokens_per_round=4 correction.rollout_rs=token_k3 correction.rollout_rs_threshold=0.1
  -> : a trajectory may be set aside until its group's tokens are older than async_dapo.max_staleness=4
bypass correction.rollout_rs=seq_mean_k3 correction.rollout_rs_threshold=0.1 actor.policy_loss.loss_mode=gspo
  -> : is replaced by verl's bypass loss
balance async_dapo.max_staleness=null -> async_dapo.max_staleness=None: async_dapo.importance_sampling=balance keeps
balance actor.strategy=fsdp -> : async_dapo.importance_sampling=balance exchanges FSDP2's weights
balance correction.rollout_is_threshold=null -> correction.rollout_is_threshold=None: verl would leave the weights out
async_dapo.drafts=suffix vllm.speculative_config={method:ngram,num_speculative_tokens:3}
  -> vllm.speculative_config={'method': 'ngram', ...}: async_dapo.drafts=suffix takes its place; leave one of them out
vllm.speculative_config={method:eagle3,model:a/head,num_speculative_tokens:3}
  -> vllm.speculative_config.draft_load_config=None: with rollout.load_format=dummy the model that drafts would keep
vllm.speculative_config={method:ngram,num_speculative_tokens:3,rejection_sample_method:synthetic}
  -> vllm.speculative_config.rejection_sample_method=synthetic: accepts drafts by chance
vllm.speculative_config={method:ngram,num_speculative_tokens:3} vllm.logits_processors=[a.Processor]
  -> vllm.logits_processors=['a.Processor']: vLLM refuses
vllm.kv_cache_dtype=fp8 async_dapo.rollout_strategy=partial_stale_kv rollout.free_cache_engine=False
  -> : async_dapo.rollout_strategy=partial_stale_kv keeps the cache over weight updates
vllm.kv_cache_dtype=fp8 vllm.calculate_kv_scales=True -> : vLLM calculates scales once
vllm.kv_cache_dtype=fp8 async_dapo.importance_sampling=none -> : engines sample from another distribution
vllm.kv_cache_dtype=fp8 async_dapo.importance_sampling=bypass -> : engines sample from another distribution
rollout.quantization=fp8 async_dapo.importance_sampling=none -> : engines sample from another distribution
rollout.quantization=fp8 async_dapo.importance_sampling=bypass -> : engines sample from another distribution
vllm.quantization=fp8 async_dapo.importance_sampling=none -> : engines sample from another distribution
vllm.kv_cache_dtype=fp8 correction.rollout_is=sequence -> : engines sample from another distribution
vllm.kv_cache_dtype=fp8 correction.rollout_is_threshold=5.0 -> : engines sample from another distribution
vllm.kv_cache_dtype=fp8 correction.rollout_is_threshold=0.5_3.0 -> : engines sample from another distribution
custom_reward_function.path=a.py -> : must be null: verl's V1 trainer does not read ... set its successor under `reward`
reward_model.reward_manager=dapo -> : must be null: verl's V1 trainer does not read
reward_model.rollout.name=vllm -> : must be null: verl's V1 trainer does not read
sandbox_fusion.url=http://sandbox -> : must be null: verl's V1 trainer does not read
rollout.agent.default_agent_loop=tool_agnt -> : must be one of ... did you mean tool_agent?
rollout.agent.default_agent_loop=tool_agent rollout.multi_turn.format=herms -> : must be one of
rollout.agent.agent_loop_config_path=/no/loops.yaml -> : cannot be read: FileNotFoundError
rollout.multi_turn.function_tool_path=/no/tools.py -> : its tools cannot be loaded: FileNotFoundError
rollout.multi_turn.tool_config_path=/no/tools.yaml -> : its tools cannot be loaded: FileNotFoundError
vllm.logprobs_mode=raw_logprobs -> : would take the place of rollout.logprobs_mode=processed_logprobs
vllm.max_model_len=48 -> : would take the place of rollout.max_model_len=None
vllm.max_num_seqs=2000 -> : would take the place of rollout.max_num_seqs=
vllm.max-num-seqs=2000 -> : would take the place of rollout.max_num_seqs=
vllm.tensor_parallel_size=2 -> : would take the place of rollout.tensor_model_parallel_size=1
vllm.data_parallel_size=2 -> : would take the place of rollout.data_parallel_size=1
vllm.pipeline_parallel_size=2 -> : would take the place of rollout.pipeline_model_parallel_size=1
vllm.worker_extension_cls=mine.Extension -> : is the recipe's own
vllm.stream_interval=0 -> : must be a whole number of tokens, >= 1
vllm.kv_cache_dtyp=fp8 -> : vLLM has no such argument; did you mean kv_cache_dtype?
"""
ROLLOUT = "actor_rollout_ref.rollout"
OWN_HEAD = "actor_rollout_ref.model.mtp.enable=True actor_rollout_ref.model.mtp.enable_rollout=True"
FULL = {
    "vllm.": f"++{ROLLOUT}.engine_kwargs.vllm.",
    "rollout.": f"{ROLLOUT}.",
    "actor.": "actor_rollout_ref.actor.",
    "ref.": "actor_rollout_ref.ref.",
    "correction.": "algorithm.rollout_correction.",
    "overlong.": "reward.reward_kwargs.overlong_buffer_cfg.",
}
FIRST = {
    "gae": "algorithm.adv_estimator=gae",
    "bypass": "async_dapo.importance_sampling=bypass",
    "balance": "async_dapo.importance_sampling=balance",
}
VLLM = f"{ROLLOUT}.engine_kwargs.vllm."
ADDED = ("rollout.temprature", "actor.optim.learning_rate", "critic.ppo_infer")  # options that verl's yaml lacks


def in_full(text: str) -> str:
    for name in ADDED:
        text = re.sub(rf"^{name}|(?<= ){name}", f"++{name}", text)
    return re.sub(rf"(?<![\w./=])({'|'.join(map(re.escape, FULL))})", lambda found: FULL[found[0]], text)


ROWS = re.sub(r"\n +", " ", REFUSED).strip().splitlines()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.partition(" ->")[0])
def test_a_bad_option_is_refused_with_key_value_and_remedy(run, row):
    given, _, message = row.partition(" ->")
    overrides = [in_full(FIRST.get(override, override)) for override in given.split()]
    own = [re.escape(override.lstrip("+")) for override in overrides]
    said = re.escape(in_full(message.lstrip()).replace("++", "")).replace(r"\.\.\.", ".*")
    beginning = f"({'|'.join(own)}){said}" if said.startswith(":") else said
    assert re.match(beginning, said_at_start := refusal(run, *overrides), re.DOTALL), said_at_start


@pytest.mark.parametrize(
    "overrides",
    [
        "vllm.max_num_seqs=256 vllm.kv_cache_dtype=fp8 vllm.seed=null",
        "vllm.speculative_config={method:ngram,num_speculative_tokens:8}",
        "vllm.speculative_config={model:a/head,num_speculative_tokens:3,draft_load_config:{load_format:auto}}",
        "vllm.kv_cache_dtype=fp8 correction.rollout_is_threshold=0.5_2.0",
        "vllm.kv_cache_dtype=bfloat16 async_dapo.importance_sampling=none",
        "rollout.quantization=fp8",
        "actor_rollout_ref.model.lora_rank=8",
        "algorithm.adv_estimator=opo async_dapo.max_staleness=null",
        "actor.loss_agg_mode=seq-mean-token-sum-norm actor.loss_scale_factor=32",
        f"{OWN_HEAD} rollout.load_format=auto",
        "data.train_max_samples=9 data.seed=1",
        "data.val_max_samples=1 data.shuffle=False",
    ],
)
def test_options_pass_where_they_are_safe(run, overrides):
    check_all(run(*in_full(overrides).split()))


@pytest.mark.parametrize("engine", ["megatron", "veomni", "torchtitan"])
def test_a_training_engine_that_is_not_tested_with_the_recipe_is_refused(run, files, engine):
    with pytest.raises(ConfigError, match=f"^model_engine={engine}: must be dp: of verl's training engines, FSDP"):
        check_all(compose_run([*valid_overrides(files), f"model_engine={engine}"]))
    strategy = in_full(f"actor.strategy={engine}")
    [found] = [str(one.error) for one in findings(run(strategy)) if one.error is not None]
    assert found.startswith(f"{strategy}: must be fsdp2 or fsdp: ")


@pytest.mark.parametrize(
    ("overrides", "stop_rule"),
    [
        ([], "first_completed"),
        (["async_dapo.rollout_strategy=discard"], "fifo"),
        (["async_dapo.max_staleness=0"], "fifo"),  # nothing is kept: in order of completion, short answers would win
    ],
)
def test_the_default_stop_rule_is_unbiased(run, overrides, stop_rule):
    assert AsyncDAPOConfig.from_hydra(run(*overrides)).stop_rule == stop_rule


def another_value(accepted):
    """A value of the accepted one's kind that is not accepted."""
    if any(isinstance(value, bool) for value in accepted):
        return next(value for value in (True, False) if value not in accepted)
    number = next((value for value in accepted if isinstance(value, int | float)), None)
    if number is not None:
        return number + 3
    return "{other:1}" if any(isinstance(value, dict) for value in accepted) else "other"


@pytest.mark.parametrize(("key", "accepted", "why"), [*FIXED, *IGNORED], ids=lambda value: str(value)[:60])
def test_every_option_that_would_be_ignored_is_refused(run, key, accepted, why):
    message = refusal(run, f"++{key}={another_value(accepted)}")
    assert message.startswith(f"{key}=") and why in message


@pytest.mark.parametrize(("key", "read"), SHADOWED)
def test_an_option_that_another_one_shadows_must_agree_with_it(run, key, read):
    value = not OmegaConf.select(run(), read)
    assert f"{key}={value}: is ignored, verl reads {read}" in refusal(run, f"{key}={value}")


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("async_dapo.drafts=suffix", "async_dapo.drafts"),
        (f"+{VLLM}speculative_config={{method:suffix}}", f"{VLLM}speculative_config.method"),
    ],
)
def test_given_suffix_decoding_without_its_package_then_that_is_named(run, monkeypatch, override, key):
    monkeypatch.setattr(engine_check, "find_spec", lambda package: None)
    message = f"{key}=suffix: vLLM needs a package for it; run: pip install arctic-inference==0.1.1"
    assert refusal(run, override).startswith(message)


@pytest.mark.parametrize(
    ("overrides", "drafts"),
    [("", False), (OWN_HEAD, True), ("vllm.speculative_config={method:ngram,num_speculative_tokens:3}", True)],
)
def test_the_client_knows_whatever_drafts_so_that_it_refuses_stop_strings(run, overrides, drafts):
    trainer = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
    trainer.config = run(*in_full(overrides).split())
    trainer.options = AsyncDAPOConfig.from_hydra(trainer.config)
    trainer.llm_server_manager = SimpleNamespace(get_client=lambda **arguments: arguments)
    assert trainer.get_llm_client()["drafts"] == drafts


def test_a_logger_without_its_package_is_refused(run, monkeypatch):
    monkeypatch.setattr(trainer_check, "find_spec", lambda package: None)
    message = "trainer.logger=wandb: needs the package wandb, which is not installed"
    assert refusal(run, "trainer.logger=[wandb]").startswith(message)


@pytest.mark.parametrize(
    ("override", "key", "hint"),
    [
        ("trainer.total_training_step=3", "trainer.total_training_step", "did you mean trainer.total_training_steps?"),
        ("async_dapo.train_batch_size=8", "async_dapo.train_batch_size", "did you mean data.train_batch_size?"),
        ("rollout.n=8", "rollout.n", "did you mean actor_rollout_ref.rollout.n?"),
        (
            "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
            "actor_rollout_ref.actor.megatron.tensor_model_parallel_size",
            "this recipe trains with FSDP: leave it out",
        ),
        ("model_engine=fsdp", "hydra", "Could not find 'model_engine/fsdp' Available options in 'model_engine': dp"),
        ("data.train_batch_size", "hydra", "Error parsing override 'data.train_batch_size' missing EQUAL"),
        ("trainer.logger=[console", "hydra", "no viable alternative at input '[console'"),
    ],
)
def test_a_key_that_does_not_exist_is_answered_before_anything_is_built(override, key, hint):
    with pytest.raises(ConfigError) as refused:
        compose_overrides(["data.train_batch_size=8", override])
    assert str(refused.value).startswith(f"{key}=") and hint in str(refused.value)


def check_on_gpus(run: ComposeRun, *overrides: str) -> None:
    config = run("trainer.device=cuda", *overrides)
    engine_check.check_engines(config, AsyncDAPOConfig.from_hydra(config))


def test_given_gpus_without_flash_attention_when_it_is_needed_then_the_package_is_named(run, monkeypatch):
    attention = "actor_rollout_ref.model.override_config.attn_implementation"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(engine_check, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=f"^{attention}=flash_attention_2: .*pip install .*flash-attn"):
        check_on_gpus(run)
    check_on_gpus(run, f"++{attention}=sdpa")
    monkeypatch.setattr(engine_check, "find_spec", lambda package: package == "flash_attn" or None)
    check_on_gpus(run)


@pytest.mark.parametrize(("size", "warns"), [(16, False), (5_000, True)])
def test_given_a_fixed_pool_then_the_start_warns_of_one_that_staleness_does_not_allow(run, caplog, size, warns):
    config = run(f"async_dapo.rollout_pool_size={size}", "async_dapo.max_staleness=1")
    with caplog.at_level("WARNING", logger=engine_check.__name__):  # vLLM's import sets the root logger to ERROR
        engine_check.check_engines(config, AsyncDAPOConfig.from_hydra(config))
    assert (f"async_dapo.rollout_pool_size={size}" in caplog.text) == warns
