"""Keys that older releases and other trainers of verl had, and what stands for them here."""

from collections.abc import Iterable

_ROLLOUT, _ACTOR, _CORRECTION = "actor_rollout_ref.rollout", "actor_rollout_ref.actor", "algorithm.rollout_correction"
_REF, _ENGINES = "actor_rollout_ref.ref", ("fsdp_config", "megatron")
_TOOLS, _OVERLONG = f"{_ROLLOUT}.multi_turn", "reward.reward_kwargs.overlong_buffer_cfg"
_NSYS = "global_profiler.global_tool_config.nsys"
_LOOP = f"write an agent loop ({_ROLLOUT}.agent.agent_loop_config_path)"
_SAMPLER = (
    "verl's V1 trainer makes its own sampler: set data.shuffle and data.seed, or async_dapo.selection.by for prompts "
    "chosen by their history"
)

# Old key -> new key. Of a node, what is below it as well.
RENAMED = {
    # verl's `reward`, which its older trainer fills from these; its V1 trainer does not
    "custom_reward_function": "reward.custom_reward_function",
    "sandbox_fusion": "reward.sandbox_fusion",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_loop_source": "reward.reward_manager.source",
    "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward.reward_manager.module.name",
    "reward_model.enable": "reward.reward_model.enable",
    "reward_model.enable_resource_pool": "reward.reward_model.enable_resource_pool",
    "reward_model.n_gpus_per_node": "reward.reward_model.n_gpus_per_node",
    "reward_model.nnodes": "reward.reward_model.nnodes",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.rollout": "reward.reward_model.rollout",
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model.sandbox_fusion": "reward.sandbox_fusion",
    "reward_model.overlong_buffer": _OVERLONG,
    # older releases
    "algorithm.rollout_is": f"{_CORRECTION}.rollout_is",
    "algorithm.rollout_is_threshold": f"{_CORRECTION}.rollout_is_threshold",
    "algorithm.rollout_rs": f"{_CORRECTION}.rollout_rs",
    "algorithm.rollout_rs_threshold": f"{_CORRECTION}.rollout_rs_threshold",
    f"{_ACTOR}.tis_imp_ratio_cap": f"{_CORRECTION}.rollout_is_threshold",
    f"{_TOOLS}.max_turns": f"{_TOOLS}.max_assistant_turns",
    "critic.kl_ctrl": "algorithm.kl_ctrl",
    "critic.model.fsdp_config": "critic.fsdp",
    "ray_init.num_cpus": "ray_kwargs.ray_init.num_cpus",
    "ray_init.timeline_json_file": "ray_kwargs.timeline_json_file",
    "trainer.generations_to_log_to_wandb": "trainer.log_val_generations",
    "trainer.val_generations_to_log_to_wandb": "trainer.log_val_generations",
    "trainer.profile_steps": "global_profiler.steps",
    "trainer.profile_continuous_steps": "global_profiler.profile_continuous_steps",
    "trainer.controller_nsight_options": f"{_NSYS}.controller_nsight_options",
    "trainer.worker_nsight_options": f"{_NSYS}.worker_nsight_options",
    # one_step_off and fully_async
    "rollout.nnodes": f"{_ROLLOUT}.nnodes",
    "rollout.n_gpus_per_node": f"{_ROLLOUT}.n_gpus_per_node",
    "rollout.total_rollout_steps": "trainer.total_training_steps",
    "async_training.concurrent_samples_per_replica": "async_dapo.rollout_pool_size",
}
# Old key -> what to do instead. Of a node, for all below it.
GONE = {
    "data.sampler": _SAMPLER,
    "data.datagen": "bring prompts of your own by data.custom_cls.path",
    "data.chat_template_func": "set actor_rollout_ref.model.custom_chat_template",
    "data.filter_prompts": "set data.filter_overlong_prompts",
    "reward_model.model": "a reward model has the tokenizer of reward.reward_model.model_path",
    "reward_model": "a reward model is set by reward.reward_model and asked by your reward function",
    "trainer.use_legacy_worker_impl": "verl has one kind of worker; leave it out",
    **{
        f"{model}.grad_offload": "gradients are offloaded with the weights: set param_offload there"
        for model in (*(f"{actor}.{engine}" for actor in (_ACTOR, _REF) for engine in _ENGINES), "critic.megatron")
    },
    f"{_ROLLOUT}.chat_scheduler": _LOOP,
    f"{_TOOLS}.completion_callback": _LOOP,
    f"{_TOOLS}.interaction_config_path": _LOOP,
    f"{_ROLLOUT}.use_fire_sampling": "engines sample at one temperature",
    f"{_ROLLOUT}.swap_space": f"set {_ROLLOUT}.engine_kwargs.vllm",
    "async_training.staleness_threshold": "set async_dapo.max_staleness [versions] or async_dapo.max_partial_share",
    "async_training.partial_rollout": "set async_dapo.rollout_strategy=partial",
    "async_training.trigger_parameter_sync_step": "weights are updated after each step of data.train_batch_size groups",
    "async_training.require_batches": "a step trains on data.train_batch_size groups",
    "async_training": "the options of this recipe are under async_dapo: docs/migrate.md",
}


def successor(key: str) -> str | None:
    """What to set in place of a key that verl had once; None for any other."""
    if old := _longest(RENAMED, key):
        return f"set {RENAMED[old]}{key.removeprefix(old)}"
    return GONE[old] if (old := _longest(GONE, key)) else None


def _longest(nodes: Iterable[str], key: str) -> str | None:
    above = [node for node in nodes if key == node or key.startswith(f"{node}.")]
    return max(above, key=len, default=None)
