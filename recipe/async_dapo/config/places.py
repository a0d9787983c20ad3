"""Options that name files and folders."""

# Python files that verl loads by path, on any node.
CODE_OPTIONS = ("reward.custom_reward_function.path", "reward.reward_manager.module.path", "data.custom_cls.path")
# Files that agent loop workers and the data set open.
FILE_OPTIONS = (
    "actor_rollout_ref.rollout.agent.agent_loop_config_path",
    "actor_rollout_ref.rollout.multi_turn.tool_config_path",
    "actor_rollout_ref.rollout.multi_turn.function_tool_path",
    "data.tool_config_path",
    "data.function_tool_path",
)
# Places that every node reaches, or that only one node uses.
DATA_OPTIONS = ("data.train_files", "data.val_files")
PLACE_OPTIONS = (
    *DATA_OPTIONS,
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.tokenizer_path",
    "actor_rollout_ref.model.hf_config_path",
    "actor_rollout_ref.model.lora_adapter_path",
    "actor_rollout_ref.rollout.quantization_config_file",
    "critic.model.path",
    "critic.model.tokenizer_path",
    "critic.model.hf_config_path",
    "reward.reward_model.model_path",
)
OUTPUT_OPTIONS = (
    "trainer.default_local_dir",
    "trainer.resume_from_path",
    "trainer.rollout_data_dir",
    "trainer.validation_data_dir",
    "async_dapo.report_dir",
    "global_profiler.save_path",
)
