"""Options that verl 0.9.1's V1 trainer would silently ignore.

Every row was checked against the installed wheel: nothing on the V1 path reads the option. Several of them act in
verl's older trainer, so scripts still carry them.
"""

from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ...config.options import AsyncDAPOConfig
from ...config.values import ConfigError, check_each
from ...config.verl_keys import ACTOR, MODEL, REF, ROLLOUT
from ...startup.preflight import Check, Seen, in_turn
from ...startup.verl_options import require
from ..known_options.keys import UnreadKey, changed
from .old_keys import successor

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
    (ACTOR + "use_rollout_log_probs", (False, None), "use async_dapo.importance_sampling=bypass"),
    (ACTOR + "grad_clip", (1.0, None), "use actor_rollout_ref.actor.optim.clip_grad"),
    (ACTOR + "use_prefix_grouper", (False,), "disable it"),
    (ACTOR + "calculate_sum_pi_squared", (False,), "disable it"),
    (ACTOR + "freeze_vision_tower", (False,), "disable it"),
    (ACTOR + "policy_loss.rollout_correction", (None,), "use algorithm.rollout_correction"),
    ("critic.ppo_max_token_len_per_gpu", (32768,), "use critic.ppo_infer_max_token_len_per_gpu"),
    ("critic.ulysses_sequence_parallel_size", (1, None), "use critic.fsdp.ulysses_sequence_parallel_size"),
    (ROLLOUT + "over_sample_rate", (0,), "use async_dapo.over_sampling_batch_size"),
    (ROLLOUT + "do_sample", (True,), "training needs answers that vary; validation has val_kwargs.do_sample"),
    (ROLLOUT + "repetition_penalty", (1.0, None), "it is always 1"),
    (ROLLOUT + "multi_stage_wake_up", (False,), "weights always wake up before the KV cache"),
    (ROLLOUT + "agent.custom_async_server.path", (None,), "the recipe brings its own server"),
    (ROLLOUT + "checkpoint_engine.backend", ("naive",), "the recipe brings the weights to the engines itself"),
    (ROLLOUT + "checkpoint_manager_class", (None,), "leave it out"),
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
    (ROLLOUT + "disaggregation", "prefill servers cannot be stopped early; leave it out"),
    (ROLLOUT + "engine_kwargs.sglang", f"engines are vLLM's; set {ROLLOUT}engine_kwargs.vllm"),
    (ROLLOUT + "engine_kwargs.trtllm", f"engines are vLLM's; set {ROLLOUT}engine_kwargs.vllm"),
    (ROLLOUT + "skip_tokenizer_init", "engines always have a tokenizer; leave it out"),
    (ROLLOUT + "trace", "the V1 trainer does not trace rollouts; leave it out"),
    (ROLLOUT + "multi_turn.num_repeat_rollouts", f"set {ROLLOUT}n"),
    (ROLLOUT + "multi_turn.use_inference_chat_template", "set actor_rollout_ref.model.custom_chat_template"),
    (ROLLOUT + "multi_turn.tokenization_sanity_check_mode", "turns are never tokenized again; leave it out"),
    *(
        (f"{MODEL}mtp.speculative_{name}", f"vLLM drafts by {MODEL}mtp.method and {MODEL}mtp.num_speculative_tokens")
        for name in ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")
    ),
    *(
        (f"{model}optim.total_training_steps", "it follows trainer.total_training_steps; leave it out")
        for model in (ACTOR, "critic.")
    ),
    *((f"{model}rollout_n", f"set {ROLLOUT}n") for model in (ACTOR, REF, "critic.")),
    *(
        (f"{model}megatron.{name}", "leave it out")
        for model in (ACTOR, REF, "critic.")
        for name in ("dist_checkpointing_prefix", "router_replay.record_file", "router_replay.replay_file")
    ),
)

# (key, the option that is read in its place)
SHADOWED: tuple[tuple[str, str], ...] = (
    (ACTOR + "use_remove_padding", "actor_rollout_ref.model.use_remove_padding"),
    (ACTOR + "use_fused_kernels", "actor_rollout_ref.model.use_fused_kernels"),
    (ACTOR + "use_torch_compile", ACTOR + "fsdp_config.use_torch_compile"),
    (ROLLOUT + "log_prob_use_dynamic_bsz", ACTOR + "use_dynamic_bsz"),
)


def with_ignored(core: dict[str, Check], config: DictConfig, options: AsyncDAPOConfig, seen: Seen) -> dict[str, Check]:
    """The core's checks, and that of ignored options behind that of verl's."""
    return core | {"verl's options": in_turn(core["verl's options"], partial(check_ignored, config))}


def check_ignored(config: DictConfig) -> None:
    """
    Raises:
        ConfigError: naming key, value and what to set instead.
    """
    rows = [(key, accepted, f"another value would be ignored; {instead}") for key, accepted, instead in IGNORED]
    for key, read in SHADOWED:
        if (value := OmegaConf.select(config, read)) is not None:
            rows.append((key, (value, None), f"another value would be ignored, verl reads {read}"))
    unread = [(option, instead) for node, instead in UNREAD for option in changed(config, node)]
    check_each(
        [
            *(partial(require, config, *row) for row in rows),
            *(partial(_refuse_unread, option, instead) for option, instead in unread),
        ]
    )


def _refuse_unread(option: UnreadKey, instead: str) -> None:
    raise ConfigError(option.key, option.value, f"nothing reads it; {successor(option.key) or instead}")
