"""What a life of the matrix is started with."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from recipe.async_dapo_lab.quickstart.model_and_data import Assets, prepare_assets
from recipe.async_dapo_lab.quickstart.overrides import RunSettings, recipe_overrides, verl_overrides

from .cells import Stack

ENDLESS = 100_000  # steps
# Longer than a process is stopped, so that it is waited for.
_LIMITS = ("async_dapo.engine_timeout_s=60",)
_EVERY_STEP = (
    "trainer.save_freq=1",
    "trainer.max_actor_ckpt_to_keep=2",
    "trainer.resume_mode=auto",
    "trainer.val_before_train=False",
    "trainer.test_freq=4",
)
_EMULATED = (
    "trainer.device=cuda",
    "trainer.nnodes=1",
    "trainer.n_gpus_per_node=2",
    "data.train_batch_size=8",
    "data.max_prompt_length=256",
    "data.max_response_length=2048",
    "data.val_max_samples=8",
    "data.seed=0",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "async_dapo.rollout_strategy=partial",
    "rehearsal.stand_in=True",
    "rehearsal.speedup=10",
    f"rehearsal.steps={ENDLESS}",
    "rehearsal.warmup=1",
    "rehearsal.length_median_tok=500",
    "rehearsal.training_s=6",
    # A rehearsal has one of each, and so have its checkpoints, which the next life is checked against.
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "data.dataloader_num_workers=0",
)
_ENGINES = 2
_ON_BOTH_NODES = "actor_rollout_ref.rollout.agent.num_workers=2"
# Engines that are slower than the trainer, so that they are always at work. A checkpoint stops them: not every step.
_SEPARATE = (
    "async_dapo.placement=separate",
    "actor_rollout_ref.rollout.nnodes=1",
    f"actor_rollout_ref.rollout.n_gpus_per_node={_ENGINES}",
    "actor_rollout_ref.rollout.max_num_seqs=4",
    f"++ray_kwargs.ray_init.num_gpus={1 + _ENGINES}",
    f"ray_kwargs.ray_init.num_cpus={16 + 4 * _ENGINES}",
    "trainer.save_freq=3",
    "trainer.test_freq=-1",
)


def emulated(folder: Path) -> list[str]:
    return [*_EMULATED, *_LIMITS, *_EVERY_STEP, *_kept_in(folder), f"rehearsal.output={folder / 'rehearsal'}"]


def vllm(assets: Assets, folder: Path, *, engines: int = _ENGINES) -> list[str]:
    settings = RunSettings(assets=assets, output=folder, ray_folder=folder, steps=ENDLESS, seed=0, engines=engines)
    own = recipe_overrides(strategy="partial", stop_rule=None)
    return [*verl_overrides(settings), *own, *_LIMITS, *_EVERY_STEP, *_kept_in(folder)]


def separate(assets: Assets, folder: Path) -> list[str]:
    return [*vllm(assets, folder, engines=1), *_SEPARATE]


def command_of(stack: Stack, output: Path) -> Callable[[Path], list[str]]:
    """Makes the overrides of a life, given the folder that all lives of a run share; model and data lie in `output`."""
    if stack.is_rehearsed:
        spread = [_ON_BOTH_NODES] if stack.has_two_nodes else []
        return lambda folder: emulated(folder) + spread
    assets = prepare_assets(output / "assets", seed=0)
    return partial(separate if stack.is_separate else vllm, assets)


def _kept_in(folder: Path) -> list[str]:
    return [f"trainer.default_local_dir={folder / 'checkpoints'}", "trainer.logger=[console,file]"]
