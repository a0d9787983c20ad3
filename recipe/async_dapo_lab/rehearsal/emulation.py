"""What a configuration must say otherwise to be rehearsed on this machine, stand-ins for a model and data that are not
there included; everything else stays as it is.
"""

import json
import random
import time
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

from ...async_dapo.config.values import ConfigError, Placement
from ..plan.hardware import MODEL_PRESETS
from ..quickstart.tiny_model import build_tokenizer
from . import answers
from .options import RehearsalOptions

MODEL = "qwen3-8b"
POSITIONS = 131_072
TRAIN_ROWS, VALIDATION_ROWS = 8192, 16
PROMPT_TOK = 200  # about; the tokenizer has a token a character

_LOGICAL_CPUS = 16  # Ray's are logical: they have to suffice for the actors' shares, not to exist
_OBJECT_STORE_BYTES = 500_000_000


def _make_stand_in(folder: Path) -> None:
    """Write `model/`, `train.parquet` and `validation.parquet`; what is there already is kept."""
    import pyarrow
    import pyarrow.parquet

    if (folder / "validation.parquet").exists():
        return
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(model)
    about = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "max_position_embeddings": POSITIONS,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    (model / "config.json").write_text(json.dumps(MODEL_PRESETS[MODEL] | about, indent=2) + "\n")
    for name, count in (("train", TRAIN_ROWS), ("validation", VALIDATION_ROWS)):
        rng = random.Random(name)
        rows = [_row(number, rng) for number in range(count)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}.parquet")


def _row(number: int, rng: random.Random) -> dict[str, object]:
    words = " ".join(str(rng.randrange(10_000)) for _ in range(PROMPT_TOK // 5))
    return {
        "data_source": "rehearsal",
        "prompt": [{"role": "user", "content": f"{number}: {words}"[: PROMPT_TOK - 20]}],
        "ability": "none",
        "reward_model": {"style": "rule", "ground_truth": "1"},
        "extra_info": {"index": number},
    }


def use_stand_in(config: DictConfig, options: RehearsalOptions) -> None:
    """Model and data that are made on the spot, in place of the configured ones."""
    folder = options.folder.parent / "rehearsal-stand-in"
    _make_stand_in(folder)
    with open_dict(config):
        config.actor_rollout_ref.model.path = str(folder / "model")
        config.actor_rollout_ref.model.hf_config_path = None
        config.actor_rollout_ref.model.tokenizer_path = None
        config.data.filter_overlong_prompts = False  # none is
        config.data.train_files = str(folder / "train.parquet")
        config.data.val_files = str(folder / "validation.parquet")
        _script_rewards(config)


def check_rehearsable(config: DictConfig) -> None:
    """
    Raises:
        ConfigError: for what has no emulation.
    """
    separate = config.async_dapo.placement == Placement.SEPARATE
    for key, is_used, what in (
        ("async_dapo.placement", separate, "engines on GPUs of their own"),
        ("reward.reward_model.enable", config.reward.reward_model.enable, "reward models"),
        ("algorithm.adv_estimator", config.algorithm.adv_estimator == "gae", "critics"),
    ):
        if is_used:
            raise ConfigError(key, OmegaConf.select(config, key), f"{what} are not rehearsed; do without")


def emulate(config: DictConfig, options: RehearsalOptions) -> None:
    """Change a checked configuration in place. The clock begins."""
    folder = options.folder
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    with open_dict(config):
        config.rehearsal.origin_s = time.time()
        config.rehearsal.output = str(folder)
        trainer.device = "cpu"
        trainer.logger = ["console", "file"]
        trainer.default_local_dir = str(folder / "checkpoints")
        trainer.resume_mode = "disable"
        config.async_dapo.report_dir = None  # seconds of its clock are not seconds
        rollout.enable_rollout_routing_replay = False  # emulated engines have no experts
        trainer.total_training_steps = min(options.steps, trainer.total_training_steps or options.steps)
        rollout.nnodes, rollout.n_gpus_per_node = trainer.nnodes, trainer.n_gpus_per_node
        _share_workers(config, options)
        config.reward.num_workers = 1
        config.data.dataloader_num_workers = 0
        config.transfer_queue.backend.SimpleStorage.num_data_storage_units = 1
        ray_init = config.ray_kwargs.ray_init
        ray_init.num_cpus, ray_init.num_gpus = _LOGICAL_CPUS, 1
        ray_init.include_dashboard = False
        ray_init.object_store_memory = _OBJECT_STORE_BYTES
        _script_rewards(config)
        config.async_dapo.round_timeout_s /= options.speedup


def _script_rewards(config: DictConfig) -> None:
    function, groups = config.reward.custom_reward_function, config.algorithm.filter_groups
    function.path, function.name = f"pkg://{answers.__name__}", answers.compute_score.__name__
    function.reward_kwargs = {"metric": groups.metric if groups.enable else "acc"}


def _share_workers(config: DictConfig, options: RehearsalOptions) -> None:
    """Fewer processes with as many slots together."""
    agent = config.actor_rollout_ref.rollout.agent
    workers = min(agent.num_workers, options.workers)
    slots = config.async_dapo.max_concurrent_prompts * agent.num_workers
    config.async_dapo.max_concurrent_prompts = -(-slots // workers)
    agent.num_workers = workers
