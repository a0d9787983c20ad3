"""The memory table of docs/cluster.md, by the arithmetic of the planner and of the lab's check."""

import pandas as pd

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo_lab.plan.costs import ServerConstants, kv_room_tok
from recipe.async_dapo_lab.plan.hardware import MODEL_PRESETS, Accelerator, find_accelerator, load_model
from recipe.async_dapo_lab.plan.model_size import ModelShape
from recipe.async_dapo_lab.plan.trainer_memory import TrainerMemory, pinned_bytes

# Model, GPUs that train it together, GPUs of an engine.
SETTINGS = (("qwen3-8b", 8, 1), ("qwen3-32b", 32, 4))
ACCELERATORS = ("h100", "h200")
GPUS_PER_NODE = 8
UTILIZATION = 0.8  # rollout.gpu_memory_utilization of the reference script
MICRO_BATCH_TOK = 18_432  # its actor.ppo_max_token_len_per_gpu
GB = 1e9


def memory_table() -> pd.DataFrame:
    return pd.DataFrame([_row(*setting, name) for setting in SETTINGS for name in ACCELERATORS])


def _row(name: str, gpus: int, per_engine: int, accelerator_name: str) -> dict[str, object]:
    model, accelerator = load_model(name), find_accelerator(accelerator_name)
    trainer = TrainerMemory(
        parameters=model.parameters,
        shards=gpus,
        layers=model.layers,
        hidden=model.hidden,
        vocabulary=model.vocabulary,
        micro_batch_tok=MICRO_BATCH_TOK,
        offloads_weights=True,
        offloads_optimizer=True,
    )
    shard = pinned_bytes(MODEL_PRESETS[name], parameters=model.parameters, shards=gpus, value_bytes=4)
    on_host = trainer.copies_on_host * shard * min(gpus, GPUS_PER_NODE)
    return {
        "Model": name,
        "GPUs": f"{gpus} x {accelerator_name.upper()}, {per_engine} an engine",
        "Trainer's state [GB]": round(trainer.state_bytes / GB, 1),
        "Micro batch [GB]": round(trainer.activation_bytes / GB, 1),
        "Engine's weights [GB]": round(model.weight_bytes / per_engine / GB, 1),
        "KV cache [tokens]": _room(model, accelerator, per_engine),
        "Host, a node [GB]": round(on_host / GB),
    }


def _room(model: ModelShape, accelerator: Accelerator, per_engine: int) -> str:
    try:
        room_tok = kv_room_tok(
            model,
            accelerator,
            ServerConstants(),
            tensor_parallel_size=per_engine,
            gpu_memory_utilization=UTILIZATION,
        )
    except ConfigError:  # the weights do not fit
        return "none"
    return f"{room_tok // 1000}k"
