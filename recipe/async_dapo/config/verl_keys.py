"""Where verl's options are: how their keys begin, what is the same of several models, and which options name files."""

ROLLOUT, ACTOR, REF = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor.", "actor_rollout_ref.ref."
MODEL, VLLM = "actor_rollout_ref.model.", ROLLOUT + "engine_kwargs.vllm."
CORRECTION = "algorithm.rollout_correction."
MODELS = {"actor": ACTOR, "ref": REF, "critic": "critic."}
# Nodes of FSDP; the last one has the options of its engine.
FSDP_NODES = {"actor": ("", "fsdp_config."), "ref": ("", "fsdp_config."), "critic": ("fsdp.",)}
SHARDS = {model: f"{MODELS[model]}{nodes[-1]}fsdp_size" for model, nodes in FSDP_NODES.items()}
TOOL_FILES = (f"{ROLLOUT}multi_turn.tool_config_path", f"{ROLLOUT}multi_turn.function_tool_path")

# Python files that verl loads by path, on any node.
CODE_OPTIONS = ("reward.custom_reward_function.path", "reward.reward_manager.module.path", "data.custom_cls.path")
# Files that agent loop workers and the data set open.
FILE_OPTIONS = (
    f"{ROLLOUT}agent.agent_loop_config_path",
    *TOOL_FILES,
    "data.tool_config_path",
    "data.function_tool_path",
)
# Places that every node reaches, or that only one node uses.
DATA_OPTIONS = ("data.train_files", "data.val_files")
PLACE_OPTIONS = (
    *DATA_OPTIONS,
    f"{MODEL}path",
    f"{MODEL}tokenizer_path",
    f"{MODEL}hf_config_path",
    f"{MODEL}lora_adapter_path",
    f"{ROLLOUT}quantization_config_file",
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
PATH_OPTIONS = (*CODE_OPTIONS, *FILE_OPTIONS, *PLACE_OPTIONS, *OUTPUT_OPTIONS)  # all of them
