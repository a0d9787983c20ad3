"""verl's options: types, numbers and their ranges, those that this recipe decides, those that verl 0.9.1's V1 trainer
would silently ignore, and what `engine_kwargs.vllm` hands to vLLM behind verl's own options.

Every row of `IGNORED` was checked against the installed wheel: nothing on the V1 path reads the option. Several of them
act in verl's older trainer, so scripts still carry them.
"""

import math
import re
from collections.abc import Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from omegaconf import DictConfig, ListConfig, OmegaConf

from ..config.values import (
    NO_NODE,
    ConfigError,
    Count,
    NotNegative,
    Positive,
    Share,
    SomeShare,
    check_each,
    refused,
    typed,
)
from ..runtime.shipping import CODE_OPTIONS, FILE_OPTIONS, OUTPUT_OPTIONS, PLACE_OPTIONS
from .keys import UnreadKey, changed, engine_of, options_of, verls_own
from .old_keys import successor

_ROLLOUT, _ACTOR, _REF = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor.", "actor_rollout_ref.ref."
_MODEL, _KWARGS = "actor_rollout_ref.model.", "reward.reward_kwargs."
_VLLM = _ROLLOUT + "engine_kwargs.vllm."

_Rate = Annotated[float, Meta(ge=0, description="a number >= 0")]
_Finite = Annotated[float, Meta(ge=-1e9, le=1e9, description="a number")]
_TEXT = "text that is not empty (a number in quotes of its own: '\"7\"')"
_Text = Annotated[str, Meta(min_length=1, description=_TEXT)]
_AboveOne = Annotated[float, Meta(gt=1, description="a number > 1")]
_TopK = Annotated[int, Meta(ge=-1, description="a whole number >= -1")]
_SEQUENCE_PARALLEL = ("ulysses_sequence_parallel_size", "fsdp_config.ulysses_sequence_parallel_size")
# Ranks that hold a share of the model, or of a sequence, in Megatron and VeOmni.
MEGATRON_SIZES = tuple(f"megatron.{name}_parallel_size" for name in ("tensor_model", "pipeline_model", "context"))
VEOMNI_SIZE = "veomni.ulysses_parallel_size"

_ABSENT = object()

# Numbers that this recipe takes from verl's options, with the values that verl has a meaning for. Some of these are no
# positive numbers: a frequency <= 0 is "never", a number of checkpoints or samples <= 0 is "all".
_OF_KIND: tuple[tuple[Any, str], ...] = (
    (Count, f"""
        trainer.total_epochs trainer.nnodes trainer.n_gpus_per_node reward.num_workers
        transfer_queue.backend.SimpleStorage.num_data_storage_units
        {_ROLLOUT}val_kwargs.n {_ROLLOUT}n_gpus_per_node {_ROLLOUT}tensor_model_parallel_size
        {_ROLLOUT}data_parallel_size {_ROLLOUT}pipeline_model_parallel_size {_ROLLOUT}max_num_seqs
        {_ROLLOUT}checkpoint_engine.update_weights_bucket_megabytes
        {_ROLLOUT}max_num_batched_tokens {_ACTOR}ppo_epochs {_ACTOR}ppo_mini_batch_size
        critic.ppo_epochs critic.ppo_mini_batch_size critic.ppo_infer_max_token_len_per_gpu
        critic.fsdp.ulysses_sequence_parallel_size"""),
    (Count | None, f"""
        trainer.total_training_steps transfer_queue.backend.SimpleStorage.total_storage_size
        ray_kwargs.ray_init.num_cpus {_ROLLOUT}max_model_len {_VLLM}stream_interval
        data.filter_overlong_prompts_workers
        {_ROLLOUT}log_prob_micro_batch_size_per_gpu {_ROLLOUT}log_prob_max_token_len_per_gpu
        {_REF}log_prob_micro_batch_size_per_gpu {_REF}log_prob_max_token_len_per_gpu
        {_ACTOR}ppo_micro_batch_size_per_gpu {_ACTOR}ppo_max_token_len_per_gpu"""),
    (int, f"""
        trainer.save_freq trainer.test_freq trainer.critic_warmup data.train_max_samples data.val_max_samples
        {_ACTOR}data_loader_seed"""),
    (int | None, f"trainer.max_actor_ckpt_to_keep trainer.max_critic_ckpt_to_keep {_KWARGS}max_resp_len"),
    (NotNegative, f"""
        {_MODEL}lora_rank {_MODEL}lora.rank {_ROLLOUT}nnodes data.dataloader_num_workers
        {_ROLLOUT}moe_load_balance_metrics_interval {_ROLLOUT}seed"""),
    (NotNegative | None, "data.val_batch_size data.seed"),
    (Positive, f"{_KWARGS}overlong_buffer_cfg.penalty_factor {_ROLLOUT}temperature"),
    (Positive, f"{_ACTOR}optim.clip_grad"),
    (_Rate, f"""
        {_ROLLOUT}val_kwargs.temperature {_ACTOR}optim.lr {_ACTOR}optim.weight_decay {_ACTOR}clip_ratio
        {_ACTOR}kl_loss_coef"""),
    (_Rate | None, f"{_ACTOR}clip_ratio_low {_ACTOR}clip_ratio_high"),  # null = clip_ratio
    (_AboveOne, f"{_ACTOR}clip_ratio_c"),
    (_Finite, f"{_ACTOR}entropy_coeff"),
    (int | None, f"{_ACTOR}optim.lr_warmup_steps"),
    (Share, f"{_ACTOR}optim.lr_warmup_steps_ratio critic.optim.lr_warmup_steps_ratio"),
    (SomeShare, f"{_ROLLOUT}val_kwargs.top_p {_ROLLOUT}gpu_memory_utilization"),
    (_TopK, f"{_ROLLOUT}val_kwargs.top_k"),
)  # fmt: skip
# Hydra reads `no` and `off` as texts, which Python takes for true.
SWITCHES: dict[str, Any] = dict.fromkeys(
    f"""
        trainer.val_before_train trainer.val_only data.shuffle data.validation_shuffle data.filter_overlong_prompts
        algorithm.use_kl_in_reward algorithm.filter_groups.enable algorithm.use_pf_ppo critic.enable
        algorithm.norm_adv_by_std_in_grpo algorithm.rollout_correction.bypass_mode {_KWARGS}overlong_buffer_cfg.enable
        algorithm.rollout_correction.rollout_is_batch_normalize {_REF}log_prob_use_dynamic_bsz
        {_ACTOR}use_kl_loss {_ACTOR}shuffle {_ACTOR}use_dynamic_bsz {_ACTOR}fsdp_config.param_offload
        {_ACTOR}fsdp_config.optimizer_offload {_ROLLOUT}enforce_eager {_ROLLOUT}free_cache_engine
        {_ROLLOUT}disable_log_stats {_ROLLOUT}enable_chunked_prefill {_ROLLOUT}enable_prefix_caching
        {_ROLLOUT}enable_rollout_routing_replay {_ROLLOUT}multi_turn.enable {_ROLLOUT}prometheus.enable
        {_ROLLOUT}val_kwargs.do_sample {_MODEL}enable_gradient_checkpointing {_MODEL}use_remove_padding
        {_MODEL}use_fused_kernels {_MODEL}trust_remote_code {_MODEL}lora.merge {_MODEL}mtp.enable
        {_MODEL}mtp.enable_rollout reward.reward_model.enable reward.reward_model.enable_resource_pool
    """.split(),
    bool | None,
)
TEXTS: dict[str, Any] = {
    **dict.fromkeys([*CODE_OPTIONS, *FILE_OPTIONS, *PLACE_OPTIONS, *OUTPUT_OPTIONS], str | None),
    **dict.fromkeys(
        f"""
            trainer.default_local_dir trainer.project_name data.prompt_key {_MODEL}path
            {_ROLLOUT}agent.default_agent_loop
        """.split(),
        _Text,
    ),
    **dict.fromkeys(["trainer.experiment_name", "reward.custom_reward_function.name"], _Text | None),
    **dict.fromkeys(["data.train_files", "data.val_files"], str | list[str]),
    _MODEL + "external_lib": str | list[str] | None,
    "ray_kwargs.ray_init.runtime_env.py_modules": list[str] | None,
    "reward.sandbox_fusion.url": str | None,
}
NUMBERS: dict[str, Any] = {
    **{key: kind for kind, keys in _OF_KIND for key in keys.split()},
    **{model + name: Count for model in (_ACTOR, _REF) for name in _SEQUENCE_PARALLEL},
    **{model + name: Count for model in (_ACTOR, _REF, "critic.") for name in (*MEGATRON_SIZES, VEOMNI_SIZE)},
}
TYPES = NUMBERS | SWITCHES | TEXTS
# Nodes of options that must stay such, parents first.
NODES = [*dict.fromkeys(key[: dot.start()] for key in TYPES for dot in re.finditer(r"\.", key)), _ROLLOUT + "custom"]
MAY_BE_NULL = ("reward.sandbox_fusion", "reward.reward_manager.module")  # of these, for verl

# verl's training engines that this recipe knows -> the strategies of each; `dp` is FSDP.
TRAINING_ENGINES = {"dp": ("fsdp2", "fsdp"), "megatron": ("megatron",), "veomni": ("veomni",)}
_WHOLE_VOCABULARY = "log-probs are compared with the trainer's, of the whole vocabulary; validation has val_kwargs"
# fmt: off
# (key, accepted values, why another would be wrong). An option that is absent counts as None.
FIXED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("trainer.use_v1", (True,), "the recipe is a plugin of verl's V1 trainer"),
    ("trainer.v1.trainer_mode", ("async_dapo",), "it selects this recipe's trainer"),
    ("trainer.v1.async_dapo", (None, {}),
     "a step of this recipe trains once on the whole batch; it has no options here"),
    ("model_engine", tuple(TRAINING_ENGINES), "the recipe knows no other of verl's training engines"),
    (_ACTOR + "megatron.dynamic_context_parallel", (False, None), "the ranks that share a step would not be known"),
    ("trainer.v1.sampler.custom_sampler.path", (None,), "the recipe brings its own sampler"),
    ("trainer.resume_mode", ("auto", "disable", "resume_path"), "there is no other mode"),
    ("trainer.remove_previous_ckpt_in_save", (None, False),
     "verl would delete the model before the next checkpoint is complete; use trainer.max_actor_ckpt_to_keep=1"),
    ("actor_rollout_ref.hybrid_engine", (True,), "async_dapo.placement decides"),
    (_ROLLOUT + "name", ("vllm",), "stopping an engine at once is implemented for vLLM"),
    (_ROLLOUT + "calculate_log_probs", (True,), "behaviour log-probs are the engine's own"),
    (_ROLLOUT + "logprobs_mode", ("processed_logprobs",), "others are not those that tokens were sampled with"),
    (_ROLLOUT + "router_config_path", (None,), "the recipe brings its own load balancer"),
    (_ROLLOUT + "agent.agent_loop_manager_class", (None,), "the recipe brings its own manager"),
    (_ROLLOUT + "full_determinism", (False,), "what is interrupted depends on timing"),
    (_ROLLOUT + "top_p", (1.0,), _WHOLE_VOCABULARY),
    (_ROLLOUT + "top_k", (-1, 0), _WHOLE_VOCABULARY),
    ("trainer.default_hdfs_dir", (None,),
     "verl copies the model there, but neither prompts nor buffer, and never resumes from it; set "
     "trainer.default_local_dir to a shared folder"),
    (_ACTOR + "checkpoint.async_save", (False,),
     "the end of a save would not be known, and so when the checkpoint before can go"),
)
# fmt: on

# (key, accepted values, what to set instead): read by nothing on the way from this recipe through the V1 trainer.
IGNORED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("data.gen_batch_size", (None, 1), "use async_dapo.over_sampling_batch_size"),
    ("data.truncation", ("error", None), "agent loops cut prompts on the left; set data.filter_overlong_prompts=True"),
    ("data.reward_fn_key", ("data_source",), "the column is always data_source; rename it in the data"),
    ("data.tokenizer", (None,), "use actor_rollout_ref.model.tokenizer_path"),
    ("data.trust_remote_code", (False, None), "use actor_rollout_ref.model.trust_remote_code"),
    ("algorithm.filter_groups.max_inflight_gen_batches", (1, None), "use async_dapo.over_sampling_batch_size"),
    ("trainer.balance_batch", (True,), "batches are always balanced over the ranks"),
    ("trainer.esi_redundant_time", (0, None), "save at fixed steps with trainer.save_freq"),
    ("trainer.del_local_ckpt_after_load", (False, None), "trainer.max_actor_ckpt_to_keep says how many stay"),
    ("trainer.ray_wait_register_center_timeout", (300, None), "leave it out"),
    ("trainer.v1.sampler.max_off_policy_threshold", (None,), "use async_dapo.max_staleness"),
    ("trainer.v1.sampler.max_off_policy_strategy", ("drop",), "use async_dapo.max_staleness"),
    ("trainer.v1.sampler.sync_refill_failed_groups", (False,), "use async_dapo.reward.on_error"),
    ("trainer.v1.sampler.sampler_kwargs", (None, {}), "the recipe brings its own sampler"),
    ("actor_rollout_ref.nccl_timeout", (600,), "torch's default holds"),
    (_ACTOR + "use_rollout_log_probs", (False, None), "use async_dapo.importance_sampling=bypass"),
    (_ACTOR + "grad_clip", (1.0, None), "use actor_rollout_ref.actor.optim.clip_grad"),
    (_ACTOR + "use_prefix_grouper", (False,), "disable it"),
    (_ACTOR + "calculate_sum_pi_squared", (False,), "disable it"),
    (_ACTOR + "freeze_vision_tower", (False,), "disable it"),
    (_ACTOR + "policy_loss.rollout_correction", (None,), "use algorithm.rollout_correction"),
    ("critic.ppo_max_token_len_per_gpu", (32768,), "use critic.ppo_infer_max_token_len_per_gpu"),
    ("critic.ulysses_sequence_parallel_size", (1, None), "use critic.fsdp.ulysses_sequence_parallel_size"),
    (_ROLLOUT + "over_sample_rate", (0,), "use async_dapo.over_sampling_batch_size"),
    (_ROLLOUT + "do_sample", (True,), "training needs answers that vary; validation has val_kwargs.do_sample"),
    (_ROLLOUT + "repetition_penalty", (1.0, None), "it is always 1"),
    (_ROLLOUT + "multi_stage_wake_up", (False,), "weights always wake up before the KV cache"),
    (_ROLLOUT + "agent.custom_async_server.path", (None,), "the recipe brings its own server"),
    (_ROLLOUT + "checkpoint_engine.backend", ("naive",), "the recipe brings the weights to the engines itself"),
    (_ROLLOUT + "checkpoint_manager_class", (None,), "leave it out"),
)

# (option, or node of options, what to do instead): read by nothing either, so that they must be what verl's yaml has.
UNREAD: tuple[tuple[str, str], ...] = (
    *((node, "") for node in ("custom_reward_function", "reward_model", "sandbox_fusion")),  # `old_keys` says
    ("trainer.v1.sync", "it belongs to verl's sync trainer; leave it out"),
    ("trainer.v1.colocate_async", "it belongs to another trainer of verl's; set async_dapo.over_sampling_batch_size"),
    (
        "trainer.v1.separate_async",
        "it belongs to another trainer of verl's; set async_dapo.placement=separate, and async_dapo.max_staleness",
    ),
    ("distillation", "teacher log-probs are not computed inline; leave it out"),
    ("skip", "answers are always generated; leave it out"),
    ("algorithm.pf_ppo", "leave it out"),
    ("data.return_raw_input_ids", "agent loops get the messages of a prompt; leave it out"),
    ("data.return_raw_chat", "agent loops get the messages of a prompt; leave it out"),
    ("data.return_full_prompt", "agent loops get the messages of a prompt; leave it out"),
    (_ROLLOUT + "disaggregation", "prefill servers cannot be stopped early; leave it out"),
    (_ROLLOUT + "engine_kwargs.sglang", f"engines are vLLM's; set {_ROLLOUT}engine_kwargs.vllm"),
    (_ROLLOUT + "engine_kwargs.trtllm", f"engines are vLLM's; set {_ROLLOUT}engine_kwargs.vllm"),
    (_ROLLOUT + "skip_tokenizer_init", "engines always have a tokenizer; leave it out"),
    (_ROLLOUT + "trace", "the V1 trainer does not trace rollouts; leave it out"),
    (_ROLLOUT + "multi_turn.num_repeat_rollouts", f"set {_ROLLOUT}n"),
    (_ROLLOUT + "multi_turn.use_inference_chat_template", "set actor_rollout_ref.model.custom_chat_template"),
    (_ROLLOUT + "multi_turn.tokenization_sanity_check_mode", "turns are never tokenized again; leave it out"),
    *(
        (f"{_MODEL}mtp.speculative_{name}", f"vLLM drafts by {_MODEL}mtp.method and {_MODEL}mtp.num_speculative_tokens")
        for name in ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")
    ),
    *(
        (f"{model}optim.total_training_steps", "it follows trainer.total_training_steps; leave it out")
        for model in (_ACTOR, "critic.")
    ),
    *((f"{model}rollout_n", f"set {_ROLLOUT}n") for model in (_ACTOR, _REF, "critic.")),
    *(
        (f"{model}megatron.{name}", "leave it out")
        for model in (_ACTOR, _REF, "critic.")
        for name in ("dist_checkpointing_prefix", "router_replay.record_file", "router_replay.replay_file")
    ),
)

# (key, the option that is read in its place)
SHADOWED: tuple[tuple[str, str], ...] = (
    (_ACTOR + "use_remove_padding", "actor_rollout_ref.model.use_remove_padding"),
    (_ACTOR + "use_fused_kernels", "actor_rollout_ref.model.use_fused_kernels"),
    (_ACTOR + "use_torch_compile", _ACTOR + "fsdp_config.use_torch_compile"),
    (_ROLLOUT + "log_prob_use_dynamic_bsz", _ACTOR + "use_dynamic_bsz"),
)

# vLLM's name -> the option of `rollout` from which verl, and this recipe's checks, take it.
_SAME_NAME = """
    data_parallel_size disable_log_stats dtype enable_chunked_prefill enable_prefix_caching enable_sleep_mode
    enforce_eager gpu_memory_utilization load_format logprobs_mode max_model_len max_num_batched_tokens max_num_seqs
    scheduling_policy seed
"""
OVERRIDDEN = {name: name for name in _SAME_NAME.split()} | {
    "tensor_parallel_size": "tensor_model_parallel_size",
    "pipeline_parallel_size": "pipeline_model_parallel_size",
}


def verls_file(file: str) -> Path:
    """A file or folder of the installed verl, for what an import would load too much for."""
    spec = find_spec("verl")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / file


@cache
def verls_reward_managers() -> frozenset[str]:
    """Names that verl itself registers."""
    texts = (file.read_text() for file in verls_file("experimental/reward_loop/reward_manager").glob("*.py"))
    return frozenset(name for text in texts for name in re.findall(r"""^@register\w*\("(\w+)"\)""", text, re.MULTILINE))


def listed(value: Any) -> list[Any]:
    """What an option holds that takes one value or a list of them."""
    return list(value) if isinstance(value, list | ListConfig) else [value]


def check_types(config: DictConfig) -> None:
    """Refuse what is no number, or one that verl has no meaning for, texts as switches, whatever is no text, and a
    value in place of a node of options: they would be found minutes after the start, or never.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    check_each([partial(_check_node, config, key) for key in NODES])
    types = (partial(_check_type, config, key, kind) for key, kind in TYPES.items())
    check_each([*types, *(partial(_check_kind, *one) for one in _others(config))])


def _check_node(config: DictConfig, key: str) -> None:
    node = OmegaConf.select(config, key, default=_ABSENT)
    if not (node is _ABSENT or isinstance(node, DictConfig) or (node is None and key in MAY_BE_NULL)):
        raise ConfigError(key, node, NO_NODE)


def _check_type(config: DictConfig, key: str, kind: Any) -> None:
    value = OmegaConf.select(config, key, default=_ABSENT)
    if value is not _ABSENT:
        typed(kind, list(value) if isinstance(value, ListConfig) else value, key)


def _others(config: DictConfig) -> Iterator[tuple[str, Any, Any]]:
    """Options of verl's that are in no table, with their values and verl's own, and what verl hands on to torch, vLLM
    and their like. What the user's code reads may be what the user likes.
    """
    own = verls_own(engine_of(config))
    handed_on = (_VLLM, *(f"{key}." for key in own))
    for key, value in options_of(config):
        if key not in own and key.startswith(handed_on):
            yield key, value, None
        elif key in own and key not in TYPES and not key.startswith("async_dapo."):
            if isinstance(own[key], bool) and isinstance(value, str) and "${" in value:
                value = OmegaConf.select(config, key, throw_on_resolution_failure=False)
            yield key, value, own[key]


def _check_kind(key: str, value: Any, own: Any) -> None:
    if isinstance(value, float) and math.isnan(value):
        raise ConfigError(key, value, "must be a number; set one, or leave it out")
    if any(isinstance(one, float) and not math.isfinite(one) for one in _items(value)):
        raise ConfigError(key, value, "must hold finite numbers; set them, or leave it out")
    if isinstance(own, bool) and isinstance(value, str):
        typed(bool | None, value, key)


def _items(value: Any) -> Iterator[Any]:
    """What is in a list or dict, and in those that it holds."""
    if isinstance(value, list | ListConfig | dict | DictConfig):
        for one in value.values() if isinstance(value, dict | DictConfig) else value:
            yield one
            yield from _items(one)


def check_verl_options(config: DictConfig) -> None:
    """Refuse verl's options that would be ignored; then let verl choose the device.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    ignored = ((key, accepted, f"another value would be ignored; {instead}") for key, accepted, instead in IGNORED)
    rows = [*FIXED, *ignored]
    if strategies := TRAINING_ENGINES.get(config.model_engine):
        rows.append((_ACTOR + "strategy", strategies, f"model_engine={config.model_engine} has no other"))
    for key, read in SHADOWED:
        if (value := OmegaConf.select(config, read)) is not None:
            rows.append((key, (value, None), f"another value would be ignored, verl reads {read}"))
    unread = [(option, instead) for node, instead in UNREAD for option in changed(config, node)]
    check_each(
        [
            *(partial(_require, config, *row) for row in rows),
            *(partial(_refuse_unread, option, instead) for option, instead in unread),
        ]
    )
    from verl.utils.device import auto_set_device

    auto_set_device(config)


def check_engine_arguments(config: DictConfig) -> None:
    """Refuse an argument of vLLM that contradicts an option of verl's.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    rollout = config.actor_rollout_ref.rollout
    given = rollout.engine_kwargs.vllm.items()
    check_each([partial(_check_argument, rollout, str(key), value) for key, value in given if value is not None])


def _check_argument(rollout: DictConfig, key: str, value: Any) -> None:
    name = key.replace("-", "_")
    option = OVERRIDDEN.get(name)
    if option is not None and value != rollout.get(option):
        raise ConfigError(
            _VLLM + key,
            value,
            f"would take the place of {_ROLLOUT}{option}={rollout.get(option)}, behind every check; set that instead",
        )


def _require(config: DictConfig, key: str, accepted: tuple[Any, ...], why: str) -> None:
    if OmegaConf.select(config, key) not in accepted:
        names = " or ".join("null" if option is None else str(option) for option in accepted)
        raise refused(config, key, f"must be {names}: {why}")


def _refuse_unread(option: UnreadKey, instead: str) -> None:
    raise ConfigError(option.key, option.value, f"nothing reads it; {successor(option.key) or instead}")
