"""verl's options: types, numbers and their ranges, those that this recipe decides, and what `engine_kwargs.vllm` hands
to vLLM behind verl's own options.
"""

import re
from collections.abc import Callable
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
from ..config.verl_keys import ACTOR, MODEL, PATH_OPTIONS, REF, ROLLOUT, VLLM

_KWARGS = "reward.reward_kwargs."

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
        {ROLLOUT}val_kwargs.n {ROLLOUT}n_gpus_per_node {ROLLOUT}tensor_model_parallel_size
        {ROLLOUT}data_parallel_size {ROLLOUT}pipeline_model_parallel_size {ROLLOUT}max_num_seqs
        {ROLLOUT}checkpoint_engine.update_weights_bucket_megabytes
        {ROLLOUT}max_num_batched_tokens {ACTOR}ppo_epochs {ACTOR}ppo_mini_batch_size
        critic.ppo_epochs critic.ppo_mini_batch_size critic.ppo_infer_max_token_len_per_gpu
        critic.fsdp.ulysses_sequence_parallel_size"""),
    (Count | None, f"""
        trainer.total_training_steps transfer_queue.backend.SimpleStorage.total_storage_size
        ray_kwargs.ray_init.num_cpus {ROLLOUT}max_model_len {VLLM}stream_interval
        data.filter_overlong_prompts_workers
        {ROLLOUT}log_prob_micro_batch_size_per_gpu {ROLLOUT}log_prob_max_token_len_per_gpu
        {REF}log_prob_micro_batch_size_per_gpu {REF}log_prob_max_token_len_per_gpu
        {ACTOR}ppo_micro_batch_size_per_gpu {ACTOR}ppo_max_token_len_per_gpu"""),
    (int, f"""
        trainer.save_freq trainer.test_freq trainer.critic_warmup data.train_max_samples data.val_max_samples
        {ACTOR}data_loader_seed"""),
    (int | None, f"trainer.max_actor_ckpt_to_keep trainer.max_critic_ckpt_to_keep {_KWARGS}max_resp_len"),
    (NotNegative, f"""
        {MODEL}lora_rank {MODEL}lora.rank {ROLLOUT}nnodes data.dataloader_num_workers
        {ROLLOUT}moe_load_balance_metrics_interval {ROLLOUT}seed"""),
    (NotNegative | None, "data.val_batch_size data.seed"),
    (Positive, f"{_KWARGS}overlong_buffer_cfg.penalty_factor {ROLLOUT}temperature"),
    (Positive, f"{ACTOR}optim.clip_grad"),
    (_Rate, f"""
        {ROLLOUT}val_kwargs.temperature {ACTOR}optim.lr {ACTOR}optim.weight_decay {ACTOR}clip_ratio
        {ACTOR}kl_loss_coef"""),
    (_Rate | None, f"{ACTOR}clip_ratio_low {ACTOR}clip_ratio_high"),  # null = clip_ratio
    (_AboveOne, f"{ACTOR}clip_ratio_c"),
    (_Finite, f"{ACTOR}entropy_coeff"),
    (int | None, f"{ACTOR}optim.lr_warmup_steps"),
    (Share, f"{ACTOR}optim.lr_warmup_steps_ratio critic.optim.lr_warmup_steps_ratio"),
    (SomeShare, f"{ROLLOUT}val_kwargs.top_p {ROLLOUT}gpu_memory_utilization"),
    (_TopK, f"{ROLLOUT}val_kwargs.top_k"),
)  # fmt: skip
# Hydra reads `no` and `off` as texts, which Python takes for true.
SWITCHES: dict[str, Any] = dict.fromkeys(
    f"""
        trainer.val_before_train trainer.val_only data.shuffle data.validation_shuffle data.filter_overlong_prompts
        algorithm.use_kl_in_reward algorithm.filter_groups.enable algorithm.use_pf_ppo critic.enable
        algorithm.norm_adv_by_std_in_grpo algorithm.rollout_correction.bypass_mode {_KWARGS}overlong_buffer_cfg.enable
        algorithm.rollout_correction.rollout_is_batch_normalize {REF}log_prob_use_dynamic_bsz
        {ACTOR}use_kl_loss {ACTOR}shuffle {ACTOR}use_dynamic_bsz {ACTOR}fsdp_config.param_offload
        {ACTOR}fsdp_config.optimizer_offload {ROLLOUT}enforce_eager {ROLLOUT}free_cache_engine
        {ROLLOUT}disable_log_stats {ROLLOUT}enable_chunked_prefill {ROLLOUT}enable_prefix_caching
        {ROLLOUT}enable_rollout_routing_replay {ROLLOUT}multi_turn.enable {ROLLOUT}prometheus.enable
        {ROLLOUT}val_kwargs.do_sample {MODEL}enable_gradient_checkpointing {MODEL}use_remove_padding
        {MODEL}use_fused_kernels {MODEL}trust_remote_code {MODEL}lora.merge {MODEL}mtp.enable
        {MODEL}mtp.enable_rollout reward.reward_model.enable reward.reward_model.enable_resource_pool
    """.split(),
    bool | None,
)
TEXTS: dict[str, Any] = {
    **dict.fromkeys(PATH_OPTIONS, str | None),
    **dict.fromkeys(
        f"""
            trainer.default_local_dir trainer.project_name data.prompt_key {MODEL}path
            {ROLLOUT}agent.default_agent_loop
        """.split(),
        _Text,
    ),
    **dict.fromkeys(["trainer.experiment_name", "reward.custom_reward_function.name"], _Text | None),
    **dict.fromkeys(["data.train_files", "data.val_files"], str | list[str]),
    MODEL + "external_lib": str | list[str] | None,
    "ray_kwargs.ray_init.runtime_env.py_modules": list[str] | None,
    "reward.sandbox_fusion.url": str | None,
}
NUMBERS: dict[str, Any] = {
    **{key: kind for kind, keys in _OF_KIND for key in keys.split()},
    **{model + name: Count for model in (ACTOR, REF) for name in _SEQUENCE_PARALLEL},
    **{model + name: Count for model in (ACTOR, REF, "critic.") for name in (*MEGATRON_SIZES, VEOMNI_SIZE)},
    **{
        f"{model}megatron.expert_{name}_parallel_size": Count | None
        for model in (ACTOR, REF, "critic.")
        for name in ("model", "tensor")
    },
}
TYPES = NUMBERS | SWITCHES | TEXTS
# Nodes of options that must stay such, parents first.
NODES = [*dict.fromkeys(key[: dot.start()] for key in TYPES for dot in re.finditer(r"\.", key)), ROLLOUT + "custom"]
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
    (ACTOR + "megatron.dynamic_context_parallel", (False, None), "the ranks that share a step would not be known"),
    ("trainer.v1.sampler.custom_sampler.path", (None,), "the recipe brings its own sampler"),
    ("trainer.resume_mode", ("auto", "disable", "resume_path"), "there is no other mode"),
    ("trainer.remove_previous_ckpt_in_save", (None, False),
     "verl would delete the model before the next checkpoint is complete; use trainer.max_actor_ckpt_to_keep=1"),
    ("actor_rollout_ref.hybrid_engine", (True,), "async_dapo.placement decides"),
    (ROLLOUT + "name", ("vllm",), "stopping an engine at once is implemented for vLLM"),
    (ROLLOUT + "calculate_log_probs", (True,), "behaviour log-probs are the engine's own"),
    (ROLLOUT + "logprobs_mode", ("processed_logprobs",), "others are not those that tokens were sampled with"),
    (ROLLOUT + "router_config_path", (None,), "the recipe brings its own load balancer"),
    (ROLLOUT + "agent.agent_loop_manager_class", (None,), "the recipe brings its own manager"),
    (ROLLOUT + "full_determinism", (False,), "what is interrupted depends on timing"),
    (ROLLOUT + "top_p", (1.0,), _WHOLE_VOCABULARY),
    (ROLLOUT + "top_k", (-1, 0), _WHOLE_VOCABULARY),
    ("trainer.default_hdfs_dir", (None,),
     "verl copies the model there, but neither prompts nor buffer, and never resumes from it; set "
     "trainer.default_local_dir to a shared folder"),
    (ACTOR + "checkpoint.async_save", (False,),
     "the end of a save would not be known, and so when the checkpoint before can go"),
)
# fmt: on

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


def check_types(config: DictConfig, *further: Callable[[], object]) -> None:
    """Refuse what is no number, or one that verl has no meaning for, texts as switches, whatever is no text, and a
    value in place of a node of options: they would be found minutes after the start, or never.

    Args:
        further: checks that need nodes to be right.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    check_each([partial(_check_node, config, key) for key in NODES])
    check_each([*(partial(_check_type, config, key, kind) for key, kind in TYPES.items()), *further])


def _check_node(config: DictConfig, key: str) -> None:
    node = OmegaConf.select(config, key, default=_ABSENT)
    if not (node is _ABSENT or isinstance(node, DictConfig) or (node is None and key in MAY_BE_NULL)):
        raise ConfigError(key, node, NO_NODE)


def _check_type(config: DictConfig, key: str, kind: Any) -> None:
    value = OmegaConf.select(config, key, default=_ABSENT)
    if value is not _ABSENT:
        typed(kind, list(value) if isinstance(value, ListConfig) else value, key)


def check_verl_options(config: DictConfig) -> None:
    """Refuse what this recipe decides; then let verl choose the device.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    rows = [*FIXED]
    if strategies := TRAINING_ENGINES.get(config.model_engine):
        rows.append((ACTOR + "strategy", strategies, f"model_engine={config.model_engine} has no other"))
    check_each(partial(require, config, *row) for row in rows)
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
            VLLM + key,
            value,
            f"would take the place of {ROLLOUT}{option}={rollout.get(option)}, behind every check; set that instead",
        )


def require(config: DictConfig, key: str, accepted: tuple[Any, ...], why: str) -> None:
    if OmegaConf.select(config, key) not in accepted:
        names = " or ".join("null" if option is None else str(option) for option in accepted)
        raise refused(config, key, f"must be {names}: {why}")
