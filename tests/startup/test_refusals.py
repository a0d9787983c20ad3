"""Options that are wrong, or do not go together, are refused before Ray starts: with key, value and remedy."""

import re
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace

import pytest
from hydra.errors import HydraException
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from verl.experimental.reward_loop.reward_manager import registry
from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager

from docs.support import BY_HAND, REFUSED, SUPPORT
from recipe.async_dapo.config.options import TOGETHER, AsyncDAPOConfig
from recipe.async_dapo.config.values import ConfigError, ConfigErrors, speculative_config
from recipe.async_dapo.startup import rules
from recipe.async_dapo.startup.choices import CHOICES, TRIED
from recipe.async_dapo.startup.overrides import compose_overrides
from recipe.async_dapo.startup.preflight import check_all, findings
from recipe.async_dapo.startup.rules import RULES, Run
from recipe.async_dapo.startup.verl_options import (
    FIXED,
    IGNORED,
    NODES,
    SHADOWED,
    TRAINING_ENGINES,
    TYPES,
    check_verl_options,
)
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

from ..support.composed_runs import compose_run, of_options, valid_overrides
from ..support.documents import ROOT
from ..support.refusals import AFTER_RULES, assert_refused, in_full

# A line for each row of `RULES` and `TOGETHER`, in order: overrides that it refuses -> what makes them right. `-name`
# is a package that is missing. Keys are shortened as in `FULL`, several overrides as in `SHORT`.
EXAMPLES = """
trainer.val_only=True trainer.val_before_train=False -> trainer.val_before_train=True
rollout.val_kwargs.n=4 -> rollout.val_kwargs.n=1
rollout.val_kwargs.do_sample=True -> rollout.val_kwargs.do_sample=False
rollout.val_kwargs.temperature=1 -> rollout.val_kwargs.do_sample=True
trainer.critic_warmup=5 -> trainer.critic_warmup=0
gae trainer.max_critic_ckpt_to_keep=1 -> trainer.max_actor_ckpt_to_keep=1
trainer.resume_from_path=/a/global_step_3 -> trainer.resume_mode=resume_path
trainer.logger=[console,wandb] -wandb -> trainer.logger=console
saves actor.checkpoint.save_contents=[model,hf_model] -> trainer.resume_mode=disable
actor.checkpoint.load_contents=[model] -> trainer.resume_mode=disable
gae saves critic.checkpoint.save_contents=[hf_model] -> critic.checkpoint.save_contents=[model,optimizer,extra]
gae critic.checkpoint.load_contents=[model] -> trainer.resume_mode=disable
saves anew actor.checkpoint.save_contents=[optimizer] -> actor.checkpoint.save_contents=[hf_model]
gae saves anew critic.checkpoint.save_contents=[] -> critic.checkpoint.save_contents=[model]
ranks actor.ulysses_sequence_parallel_size=3 -> actor.ulysses_sequence_parallel_size=4
ref trainer.n_gpus_per_node=4 ref.ulysses_sequence_parallel_size=3 -> ref.ulysses_sequence_parallel_size=2
gae ranks critic.fsdp.ulysses_sequence_parallel_size=3 -> critic.fsdp.ulysses_sequence_parallel_size=4
ref ref.strategy=megatron -> ref.strategy=fsdp2
gae critic.strategy=fsdp3 -> critic.strategy=fsdp2
ranks actor.fsdp_config.fsdp_size=3 -> actor.fsdp_config.fsdp_size=4
ref trainer.n_gpus_per_node=4 ref.fsdp_config.fsdp_size=0 -> ref.fsdp_config.fsdp_size=2
gae ranks critic.fsdp.fsdp_size=5 -> critic.fsdp.fsdp_size=-1
ranks actor.strategy=fsdp actor.fsdp_config.fsdp_size=1 -> actor.strategy=fsdp2
gae ranks critic.strategy=fsdp critic.fsdp.fsdp_size=1 -> critic.fsdp.fsdp_size=2
actor.fsdp_config.dtype=float16 -> ++actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype:fp16}
ref ref.fsdp_config.dtype=float32 -> ref.fsdp_config.dtype=bfloat16
gae critic.fsdp.dtype=float16 -> critic.fsdp.dtype=bfloat16
megatron actor.megatron.expert_model_parallel_size=3 -> actor.megatron.expert_model_parallel_size=1
megatron ref ref.megatron.expert_model_parallel_size=3 -> ref.megatron.expert_model_parallel_size=1
megatron gae critic.strategy=megatron critic.megatron.tensor_model_parallel_size=2 critic.experts=2 -> critic.experts=1
model.use_liger=True -liger_kernel -> model.use_liger=False
actor.ppo_mini_batch_size=3 -> actor.ppo_mini_batch_size=4
gae critic.ppo_mini_batch_size=6 -> critic.ppo_mini_batch_size=4
ranks actor.ppo_mini_batch_size=1 -> actor.ppo_mini_batch_size=2
gae ranks critic.ppo_mini_batch_size=1 -> critic.ppo_mini_batch_size=2
actor.ppo_micro_batch_size_per_gpu=5 -> actor.ppo_micro_batch_size_per_gpu=4
rollout.log_prob_micro_batch_size_per_gpu=5 -> rollout.log_prob_micro_batch_size_per_gpu=4
ref ref.log_prob_micro_batch_size_per_gpu=5 -> ref.log_prob_micro_batch_size_per_gpu=4
dynamic actor.ppo_max_token_len_per_gpu=63 -> actor.ppo_max_token_len_per_gpu=64
dynamic rollout.log_prob_max_token_len_per_gpu=63 -> rollout.log_prob_max_token_len_per_gpu=64
ref ref.log_prob_use_dynamic_bsz=True ref.log_prob_max_token_len_per_gpu=63 -> ref.log_prob_max_token_len_per_gpu=64
gae data.max_response_length=32737 -> ++critic.ppo_infer_max_token_len_per_gpu=32769
rollout.prompt_length=null -> rollout.prompt_length=32
rollout.response_length=16 -> rollout.response_length=32
megatron ref ref.megatron.tensor_model_parallel_size=1 -> ref.megatron.tensor_model_parallel_size=2
megatron ref ref.megatron.pipeline_model_parallel_size=2 -> ref.megatron.pipeline_model_parallel_size=1
megatron ref ref.megatron.context_parallel_size=2 -> ref.megatron.context_parallel_size=1
megatron actor.ppo_micro_batch_size_per_gpu=null -> actor.ppo_micro_batch_size_per_gpu=4
algorithm.use_pf_ppo=True -> algorithm.use_pf_ppo=False
algorithm.filter_groups.metric=seq_reward -> algorithm.filter_groups.metric=score
algorithm.adv_estimator=opo -> async_dapo.max_staleness=null
algorithm.use_kl_in_reward=True ref.log_prob_micro_batch_size_per_gpu=8 -> async_dapo.max_staleness=null
actor.loss_agg_mode=seq-mean-token-sum-norm -> actor.loss_scale_factor=32
bypass correction.rollout_is=token -> correction.loss_type=reinforce
bypass actor.policy_loss.loss_mode=gpg -> decoupled
actor.policy_loss.loss_mode=dppo_tv actor.clip_ratio_low=0.15 -> actor.ppo_mini_batch_size=2
bypass actor.policy_loss.loss_mode=dppo_kl -> actor.clip_ratio_high=0.05
actor.policy_loss.loss_mode=geo_mean -> actor.policy_loss.loss_mode=gspo
actor.policy_loss.loss_mode=dro -> ++actor.policy_loss.dro_beta=0.1
bypass mask actor.policy_loss.loss_mode=gspo -> actor.policy_loss.loss_mode=vanilla
bypass mask async_dapo.max_tokens_per_round=4 -> async_dapo.max_staleness=null
none correction.rollout_is=token -> decoupled
none mask -> correction.rollout_rs=null
correction.bypass_mode=True decoupled -> bypass
correction.loss_type=reinforce -> correction.loss_type=ppo_clip
bypass actor.policy_loss.loss_mode=bypass_mode -> actor.policy_loss.loss_mode=vanilla
bypass correction.loss_type=reinforce -> correction.rollout_is=token
decoupled correction.rollout_is_threshold=null -> correction.rollout_is_threshold=2.0
correction.rollout_is_threshold=0.5_5 -> correction.rollout_is_threshold=0.5_5.0
async_dapo.max_concurrent_prompts=50000 async_dapo.rollout_pool_size=null -> async_dapo.rollout_pool_size=auto
async_dapo.rollout_pool_size=10000000 -> async_dapo.rollout_pool_size=10
async_dapo.max_loads_per_server=2016 rollout.max_num_seqs=2000 -> async_dapo.max_loads_per_server=2015
rollout.nnodes=1 -> rollout.nnodes=0
rollout.tensor_model_parallel_size=2 -> trainer.n_gpus_per_node=2
async_dapo.host_kv_gib=1 -> async_dapo.rollout_strategy=partial_stale_kv
host_kv rollout.enable_prefix_caching=False -> rollout.enable_prefix_caching=True
host_kv rollout.data_parallel_size=2 -> rollout.data_parallel_size=1
host_kv rollout.enable_rollout_routing_replay=True -> rollout.enable_rollout_routing_replay=False
host_kv vllm.kv_transfer_config={kv_connector:a} -> vllm.kv_transfer_config=null
host_kv vllm.kv-offloading-size=4 -> vllm.kv-offloading-size=null
host_kv vllm.decode_context_parallel_size=2 -> vllm.decode_context_parallel_size=1
host_kv vllm.async_scheduling=True -> vllm.async_scheduling=null
host_kv async_dapo.drafts=mtp -> async_dapo.drafts=suffix
host_kv vllm.speculative_config={model:a/head} rollout.load_format=auto -> vllm.speculative_config=null
host_kv megatron head -> async_dapo.host_kv_gib=null async_dapo.rollout_strategy=partial
+rollout.enable_sleep_mode=False -> rollout.free_cache_engine=False
megatron rollout.enable_rollout_routing_replay=True -> actor.megatron.router_replay.mode=R3
replay vllm.decode_context_parallel_size=2 -> rollout.enable_rollout_routing_replay=False
megatron actor.megatron.router_replay.mode=R3 -> rollout.enable_rollout_routing_replay=True
model_engine=veomni actor.veomni.router_replay.mode=R3 -> rollout.enable_rollout_routing_replay=True
rollout.moe_load_balance_metrics_interval=1 -> rollout.enable_rollout_routing_replay=True
model_engine=veomni model.lora_rank=8 -> model.lora_rank=0
megatron model.lora_rank=8 -> model.lora.rank=8
model.lora.rank=8 -> model.lora_rank=8
model.lora_adapter_path=/an/adapter -> model.lora_rank=8
model.lora_rank=8 rollout.quantization=fp8 -> model.lora.merge=True
async_dapo.drafts=suffix ngram -> async_dapo.drafts=null
async_dapo.drafts=suffix megatron head -> async_dapo.drafts=null
async_dapo.drafts=suffix -arctic_inference -> async_dapo.drafts=null
vllm.speculative_config={method:suffix} -arctic_inference -> ngram
ngram vllm.speculative_config.rejection_sample_method=synthetic -> vllm.speculative_config.rejection_sample_method=x
vllm.speculative_config={model:a/head} -> rollout.load_format=auto
head -> model.mtp.enable_rollout=False
vllm.speculative_config={method:deepseek_mtp} rollout.load_format=auto -> vllm.speculative_config.draft_load_config={}
async_dapo.drafts=mtp rollout.quantization=fp8 -> rollout.quantization=null
ngram vllm.logits_processors=[a.Processor] -> vllm.logits_processors=null
rollout.quantization=fp8 none -> decoupled
vllm.quantization=fp8 bypass -> decoupled
vllm.kv_cache_dtype=fp8 correction.rollout_is_threshold=0.5_3.0 -> correction.rollout_is_threshold=0.5_2.0
vllm.kv-cache-dtype=fp8 host_kv -> async_dapo.rollout_strategy=partial async_dapo.host_kv_gib=null
vllm.kv_cache_dtype=fp8 vllm.calculate_kv_scales=True -> vllm.calculate_kv_scales=False
vllm.moe_backend=flashinfer_trtllm -> vllm.moe_backend=triton
vllm.worker_extension_cls=mine.Extension -> vllm.worker_extension_cls=null
vllm.enable_expert_parallel=True -> vllm.enable_expert_parallel=False
vllm.hf_overrides={a:1} rollout.quantization=fp8 -> vllm.hf_overrides=null
reward_model reward.reward_model.enable_resource_pool=False -> reward.reward_model.enable_resource_pool=True
reward_model reward.reward_model.rollout.free_cache_engine=True -> reward.reward_model.rollout.free_cache_engine=False
reward_model reward.custom_reward_function.path=null -> reward.custom_reward_function.path=a.py
overlong reward.reward_manager.name=naive -> reward.reward_manager.name=dapo
overlong reward.reward_kwargs.max_resp_len=64 -> reward.reward_kwargs.max_resp_len=32
algorithm.filter_groups.metric=null -> algorithm.filter_groups.enable=False
rollout.n=1 -> algorithm.filter_groups.enable=False
async_dapo.rollout_strategy=discard async_dapo.max_tokens_per_round=16 -> async_dapo.rollout_strategy=partial
async_dapo.rollout_strategy=partial_stale_kv -> async_dapo.host_kv_gib=1
"""
LINES = EXAMPLES.strip().splitlines()


@pytest.mark.parametrize(("rule", "line"), [*zip((*RULES, *TOGETHER), LINES, strict=True)], ids=LINES)
def test_a_row_is_refused_with_key_value_and_remedy_and_its_neighbour_passes(run, monkeypatch, rule, line):
    assert_refused(run, monkeypatch, rule, line)


@pytest.mark.parametrize(("gpus", "is_refused"), [(8, True), (16, False), (24, True), (32, False)])
def test_megatrons_parallel_sizes_count_together(run, gpus, is_refused):
    sizes = in_full("actor.megatron.tensor_model_parallel_size=4 actor.megatron.pipeline_model_parallel_size=4")
    errors = of_options(run("model_engine=megatron", f"trainer.n_gpus_per_node={gpus}", *sizes), before=AFTER_RULES)
    said = (
        f"trainer.n_gpus_per_node={gpus}: times trainer.nnodes makes {gpus} training GPUs, no multiple of the 16 that"
    )
    assert any(error.startswith(said) for error in errors) is is_refused


ALL_ACT = (
    "gae saves ref algorithm.use_kl_in_reward=True model.use_fused_kernels=True actor.fsdp_config.qat.enable=True "
    "ref.fsdp_config.qat.enable=True critic.fsdp.qat.enable=True"
)


@pytest.mark.parametrize(
    ("key", "known"), [(key, known) for key, _, known in CHOICES], ids=[key for key, *_ in CHOICES]
)
def test_a_misspelt_choice_is_answered_with_what_was_meant(run, key, known):
    meant, acts = sorted(known())[-1], in_full(ALL_ACT)
    errors = of_options(run(*acts, f"++{key}={meant}x"), before=AFTER_RULES)
    said = [error for error in errors if error.startswith(f"{key}={meant}x: must be one of ")]
    assert [error for error in said if error.endswith(f"; did you mean {meant}?")], errors


# Of what is in no table: overrides -> how the message begins, with the first override where it begins with a colon.
OTHERS = """
model_engine=torchtitan -> : must be dp or megatron or veomni:
~async_dapo.engine_timeout_s -> async_dapo.engine_timeout_s=<missing>: add it
+async_dapo.max_stalenes=3 -> : nothing reads it; did you mean async_dapo.max_staleness\\?
+async_dapo.reward.retries=2 -> : nothing reads it
async_dapo.reward=null -> async_dapo.reward=None: must hold options
async_dapo.importance_sampling=balance -> : must be one of bypass, decoupled, mixture, none
async_dapo.stop_rule=fifoo -> : must be one of first_completed, fifo, drain; did you mean fifo\\?
async_dapo.rollout_pool_size=much -> : must be a whole number >= 1, or auto, or null
data.val_max_samples=${nowhere} -> data.val_max_samples=<unreadable>:
correction.rollout_is_threshold=0 -> : verl says: rollout_is_threshold upper bound must be positive, got 0.0; set a
correction.rollout_rs=token_k1 correction.rollout_rs_threshold=0.5 -> algorithm.* verl says: .* lower <= upper, got 0.5
correction.rollout_rs=token_k3 -> algorithm.rollout_correction.rollout_rs_threshold=None: verl says: .* must be provided
actor.loss_agg_mode=mean -> verl=validate_config: verl refuses these options: .*Invalid loss_agg_mode: mean
actor.ppo_micro_batch_size_per_gpu=null -> verl=validate_config: verl refuses .*Please set at least one of
megatron actor.megatron.tensor_model_parallel_size=3 -> verl=validate_config: .*n_gpus \\(2\\) must be divisible by
++rollout.temprature=0.7 -> : nothing reads it; did you mean actor_rollout_ref.rollout.temperature\\?
async_dapo.max_tokens_per_round=16 async_dapo.max_staleness=0 -> : async_dapo.rollout_strategy=partial with .*=0 cannot
custom_reward_function.path=a.py -> : nothing reads it; set reward.custom_reward_function.path
trainer.resume_mode=resume_path -> trainer.resume_from_path=None: is read with
reward.reward_model.enable_resource_pool=True -> : must equal reward.reward_model.enable=False
vllm.max-num-seqs=2000 -> : would take the place of actor_rollout_ref.rollout.max_num_seqs=
vllm.tensor_parallel_size=2 -> : would take the place of actor_rollout_ref.rollout.tensor_model_parallel_size=1
actor.optim.optimizer=Adam_W -> : must be one of .*; did you mean AdamW\\?
actor.optim.optimizer_impl=torch.optimm -> : cannot be imported: No module named 'torch.optimm'; install its
actor.optim.optimizer_impl=bitsandbytes.optim -> : cannot be imported: No module named 'bitsandbytes'; install its
actor.optim.betas=[0.9] -> .*optim.betas=\\[0.9\\]: torch.optim.AdamW says: IndexError
actor.optim.betas=[0.9,1.5] -> .*optim.betas=\\[0.9, 1.5\\]: torch.optim.AdamW says: ValueError\\('Invalid beta
actor.optim.override_optimizer_config={epss:1} -> .*override_optimizer_config=.* says: TypeError.*'epss'
actor.optim.optimizer=Muon -> : torch.optim.Muon says: ValueError
gae critic.optim.optimizer=Adm -> critic.optim.optimizer=Adm: must be one of .*; did you mean Adam\\?
actor.optim.lr_warmup_steps_ratio=10 -> : must be a number in 0..1
rollout.dtype=fp16 -> : must be one of auto, half, float16, bfloat16
rollout.scheduling_policy=fifo -> : must be one of fcfs, priority
rollout.load_format=dumy -> : must be one of .*; did you mean dummy\\?
vllm.kv_cache_dtype=fp9 -> : must be one of .*; did you mean fp8\\?
gae critic.loss_agg_mode=token_mean -> critic.loss_agg_mode=token_mean: verl says: Invalid loss_agg_mode
ref ref.profiler.tool_config.npu.level=high -> actor_rollout_ref.ref=.*verl says: .*Profiler level only supports
async_dapo.max_staleness=null algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type=linear -> .*NotImplementedError
vllm.kv_cache_dtyp=fp8 -> : vLLM has no such argument; did you mean kv_cache_dtype\\?
vllm.speculative_config=some -> : must be an object, or JSON of one
reward.reward_manager.name=mine -> : verl says: Unknown reward manager: mine; set one of verl's, such as dapo, or name
vllm.stream_interval=0 -> : must be a whole number >= 1
""".strip().splitlines()


@pytest.mark.parametrize("line", OTHERS)
def test_what_is_in_no_table_is_refused_too(run, line):
    overrides, said = in_full(line.split(" -> ")[0]), line.split(" -> ")[1]
    beginning = re.escape(overrides[0].lstrip("+")) + said if said.startswith(":") else said
    errors = of_options(run(*overrides))
    assert [error for error in errors if re.match(beginning, error, re.DOTALL)], errors


def test_a_manager_that_is_registered_wherever_verl_is_imported_may_read_the_overlong_options(run, monkeypatch):
    """As a module of `VERL_USE_EXTERNAL_MODULES` does it. verl's own but dapo leave these options out."""
    monkeypatch.setattr(registry, "REWARD_MANAGER", {**registry.REWARD_MANAGER})
    registry.register("mine")(type("Mine", (DAPORewardManager,), {}))
    assert not of_options(
        run(*in_full("overlong reward.reward_kwargs.max_resp_len=32 reward.reward_manager.name=mine"))
    )


def test_the_older_name_of_a_logger_is_known(run, monkeypatch):
    monkeypatch.setattr(rules, "find_spec", lambda name: None if name == "wandb" else True)
    needs = "trainer.logger=tracking: needs wandb, which is not installed; install or drop it"
    assert of_options(run("trainer.logger=tracking"), before=AFTER_RULES) == [needs]


def test_a_format_of_weights_that_a_plugin_of_vllm_may_register_passes(run):
    assert not of_options(run("actor_rollout_ref.rollout.load_format=my_store"))


@pytest.mark.parametrize(("what", "how", "by"), [row[1:] for row in SUPPORT if row[2] != BY_HAND], ids=str)
def test_a_row_of_what_is_supported_says_what_its_test_or_a_check_says(run, what, how, by):
    assert of_options(run(*by.split())) if how == REFUSED else (ROOT / "tests" / by).is_file(), what


@pytest.mark.parametrize(("engine", "default"), [(name, known[0]) for name, known in TRAINING_ENGINES.items()])
def test_each_training_engine_has_its_own_strategy_and_no_other(files, engine, default):
    sizes = in_full("megatron")[1:] if engine == "megatron" else []  # verl warns of one rank
    config = compose_run([*valid_overrides(files), f"model_engine={engine}", *sizes])
    assert config.actor_rollout_ref.actor.strategy == config.actor_rollout_ref.ref.strategy == default
    check_all(config)
    other = next(known[0] for name, known in TRAINING_ENGINES.items() if name != engine)
    config.actor_rollout_ref.actor.strategy = other
    [found] = [str(one.error) for one in findings(config) if one.error is not None]
    assert found.startswith(f"actor_rollout_ref.actor.strategy={other}: must be {default}")


@pytest.mark.parametrize(
    ("engine", "sizes", "ranks", "split"),
    [
        ("dp", "actor.fsdp_config.ulysses_sequence_parallel_size=2", 8, 2),
        ("veomni", "actor.veomni.ulysses_parallel_size=4", 4, 4),
        (
            "megatron",
            "actor.megatron.tensor_model_parallel_size=2 actor.megatron.pipeline_model_parallel_size=4 "
            "actor.megatron.context_parallel_size=2 actor.megatron.expert_model_parallel_size=8",
            1,
            2,
        ),
    ],
)
def test_data_parallel_ranks_are_counted_as_each_training_engine_makes_them(run, engine, sizes, ranks, split):
    config = run(f"model_engine={engine}", "trainer.n_gpus_per_node=16", *in_full(sizes))
    facts = Run.of(config, AsyncDAPOConfig.from_hydra(config))
    assert (facts.ranks["actor"], facts.least_tok["actor"]) == (ranks, 64 // split)


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


def test_every_option_that_would_be_ignored_is_refused(run):
    table = [*FIXED, *IGNORED]
    with pytest.raises(ConfigErrors) as found:
        check_verl_options(run(*(f"++{key}={another_value(accepted)}" for key, accepted, _ in table)))
    said = {error.args[0]: str(error) for error in found.value.errors}
    assert not [key for key, _, why in table if why not in said.get(key, "")]


def test_an_option_that_another_one_shadows_must_agree_with_it(run):
    values = {key: bool(OmegaConf.select(run(), read)) for key, read in SHADOWED}
    errors = of_options(run(*(f"{key}={not value}" for key, value in values.items())))
    for key, read in SHADOWED:
        said = f"must be {values[key]} or null: another value would be ignored, verl reads {read}"
        assert f"{key}={not values[key]}: {said}" in errors


@pytest.mark.parametrize(
    ("overrides", "known"),
    [
        ("", {"continues"}),
        ("async_dapo.max_staleness=0", set()),  # an interrupted request starts anew
        ("head", {"continues", "drafts"}),  # it refuses stop strings
        ("ngram", {"continues", "drafts"}),
        ("host_kv", {"continues", "has_old_kv"}),
    ],
)
def test_the_client_knows_how_requests_go_on_and_whatever_drafts(run, overrides, known):
    trainer = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
    trainer.config = run(*in_full(overrides))
    trainer.options = AsyncDAPOConfig.from_hydra(trainer.config)
    trainer.llm_server_manager = SimpleNamespace(get_client=lambda **arguments: arguments)
    assert {name for name, value in trainer.get_llm_client().items() if value is True} == known
    assert trainer.options.load_balancer(most_per_server=1)["balance"]["keeps_kv"] is ("has_old_kv" in known)


@pytest.mark.parametrize(
    ("overrides", "brought"),
    [
        ("", False),
        ("model.mtp.enable=True", False),  # FSDP leaves the head out
        ("megatron", False),
        ("megatron model.mtp.enable=True model.mtp.enable_train=True", True),
    ],
)
def test_a_head_comes_with_the_weights_or_from_the_checkpoint(run, overrides, brought):
    config = run(*in_full(f"async_dapo.drafts=mtp model.mtp.num_speculative_tokens=3 {overrides}"))
    chosen = speculative_config(AsyncDAPOConfig.from_hydra(config).drafts, config)
    own = {} if brought else {"draft_load_config": {"load_format": "auto"}}
    assert chosen == {"method": "mtp", "num_speculative_tokens": 3, **own}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rollout.n=8", "^rollout.n=8: nothing reads it; did you mean actor_rollout_ref.rollout.n\\?$"),
        ("model_engine=fsdp", "^model_engine=fsdp: .*Could not find 'model_engine/fsdp' Available options .*: dp"),
        ("data.train_batch_size", "^data.train_batch_size=<missing>: give it a value: KEY=VALUE$"),
    ],
)
def test_what_hydra_refuses_is_told_with_a_remedy(override, said):
    with pytest.raises(ConfigError, match=said):
        compose_overrides(["data.train_batch_size=8", override])


OWN = [f"async_dapo.{name}" for name in compose_run([]).async_dapo]
KEYS = [
    *OWN,
    *NODES,
    *TYPES,
    *(key for key, *_ in (*FIXED, *IGNORED, *SHADOWED, *CHOICES, *TRIED)),
    *(one.key for one in RULES),
]
VALUES = ["null", "-1", "0", "1", "3", "0.5", "nan", ".inf", "True", "some", "''", "[]", "{}", "auto", "[a,1]", "{a:1}"]
WORDS = sorted({word for line in LINES for word in in_full(line.replace("->", " ")) if not word.startswith("-")})
ANY = st.one_of(st.sampled_from(WORDS), st.builds("++{}={}".format, st.sampled_from(KEYS), st.sampled_from(VALUES)))


def judged(run, overrides: list[str], judge: Callable[[DictConfig], list[str]]) -> None:
    with suppress(OmegaConfBaseException, HydraException):  # an override of a node that another one has replaced
        config = run(*overrides)
        errors = judge(config)
        assert all(re.match(r"[\w.' -]+=.*: .+", error, re.DOTALL) for error in errors), "no key or no remedy"
        assert not [error for error in errors if "<not checked>" in error]


@given(st.lists(ANY, min_size=1, max_size=6))
@example(["++critic.ulysses_sequence_parallel_size=.inf"])  # found at night
@settings(deadline=None, max_examples=20)
def test_no_set_of_options_ends_in_a_traceback(run, overrides):
    judged(run, overrides, of_options)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@given(st.lists(ANY, min_size=1, max_size=6))
@settings(deadline=None, max_examples=2_000)
def test_no_set_of_options_ends_any_check_in_a_traceback(run, overrides):
    judged(run, overrides, lambda config: [str(one.error) for one in findings(config) if one.error is not None])
