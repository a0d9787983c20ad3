"""Where verl's options are: how their keys begin, and what is the same of several models."""

ROLLOUT, ACTOR, REF = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor.", "actor_rollout_ref.ref."
MODEL, VLLM = "actor_rollout_ref.model.", ROLLOUT + "engine_kwargs.vllm."
CORRECTION = "algorithm.rollout_correction."
MODELS = {"actor": ACTOR, "ref": REF, "critic": "critic."}
# Nodes of FSDP; the last one has the options of its engine.
FSDP_NODES = {"actor": ("", "fsdp_config."), "ref": ("", "fsdp_config."), "critic": ("fsdp.",)}
SHARDS = {model: f"{MODELS[model]}{nodes[-1]}fsdp_size" for model, nodes in FSDP_NODES.items()}
TOOL_FILES = (f"{ROLLOUT}multi_turn.tool_config_path", f"{ROLLOUT}multi_turn.function_tool_path")
