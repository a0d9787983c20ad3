"""A step's checkpoint of the whole run: written around verl's own, gone on from, and deleted when newer ones are
complete.
"""

import logging
import shutil
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from datasets import Dataset
from omegaconf import DictConfig

from .. import store
from ..config.checkpoint_options import checkpoints_to_keep, lasting_options
from ..config.derived import longest_trained_tok
from ..config.values import ConfigError
from ..core.ledger import LedgerError
from ..core.trajectory import PromptGroup
from ..record.checkpoint_folder import (
    STEP_FOLDER,
    DamagedCheckpoint,
    absent_ranks,
    checkpoint_folders,
    new_run,
    read_complete,
    read_pool,
    run_of,
    saving,
    step_of,
)
from ..record.trained_model import TrainedModel
from ..runtime.logs import log_phase
from .checkpoints import from_frames, to_frames
from .replay_buffer import RoundReplayBuffer

logger = logging.getLogger(__name__)

_PROMPTS_READ = 64
_GONE = ".gone"  # ends the names of folders that are being deleted


def save_run(
    folder: Path,
    replay_buffer: RoundReplayBuffer,
    config: DictConfig,
    *,
    prompts: str,
    model: TrainedModel,
    run: str,
    save_models: Callable[[], None],
) -> None:
    """Write a checkpoint, which is complete once all of it is on the disk.

    Args:
        prompts: the training data, in words.
        run: that saves it.
        save_models: verl's part.

    Raises:
        RuntimeError: if it could not be written whole, with the room that is left.
    """
    state = replay_buffer.state()
    try:
        with saving(
            folder,
            to_frames(state),
            extensions=state.needed_extensions,
            has_routes=config.actor_rollout_ref.rollout.enable_rollout_routing_replay,
            prompts=prompts,
            options=lasting_options(config),
            model=model,
            run=run,
        ):
            save_models()
    except (OSError, RuntimeError) as error:  # torch's says nothing of a full disk
        is_there = folder.parent.exists()
        room = f"{shutil.disk_usage(folder.parent).free / 1e9:.1f} GB are free there" if is_there else "it is gone"
        raise RuntimeError(
            f"{error}\n{folder} could not be written whole: {room}, seen from this node; "
            "trainer.resume_mode=auto goes on from the newest complete checkpoint"
        ) from error
    if absent := absent_ranks(folder):
        key = f"trainer.default_local_dir={config.trainer.default_local_dir}"
        what = f"{folder} has no model of the training ranks {absent}, seen from this node"
        logger.warning("%s: no run can go on from it if %s is not a folder that all nodes share", what, key)


def restore_run(
    replay_buffer: RoundReplayBuffer, config: DictConfig, *, step: int, prompts: str, is_newest: bool
) -> Path:
    """Go on from the checkpoint of a step, whose models verl has loaded. Returns its folder.

    Args:
        prompts: the training data of this run, in words.
        is_newest: it was looked for, and not named.

    Raises:
        ConfigError: if it is damaged, or its groups are no groups of this run.
    """
    trainer = config.trainer
    key = "default_local_dir" if is_newest else "resume_from_path"
    folder = Path(trainer.resume_from_path or f"{trainer.default_local_dir}/{STEP_FOLDER}{step}")
    try:
        replay_buffer.restore(from_frames(read_pool(folder)))
    except (DamagedCheckpoint, LedgerError) as error:
        raise ConfigError(
            f"trainer.{key}", trainer[key], f"{folder}: {error}; resume from another checkpoint"
        ) from error
    log_phase(f"resumed from {folder}: step {step + 1} is next")
    store.forget_all_but(replay_buffer.pool.carried_uids, partition_id=store.TRAIN)
    give_up_unfit(replay_buffer, longest_trained_tok(config))
    then = read_complete(folder).prompts
    if then and then != prompts:
        logger.warning(
            "the training data have %s, and the checkpoint's run had %s: other prompts follow, from the place of "
            "the data loader on; groups that are kept have theirs. Resume with its data.train_files, "
            "data.max_prompt_length and data.train_max_samples, unless that is meant",
            prompts or "a class of its own",
            then,
        )
    return folder


def give_up_unfit(replay_buffer: RoundReplayBuffer, longest_tok: int) -> None:
    """Of a checkpoint: give groups up whose trajectories are longer than training takes now, or were scored without the
    metric that groups are filtered by now: else each resume would end at them. Complete ones are given up, too, where
    this run keeps none, or has no trajectory go on under another policy.
    """
    options, pool = replay_buffer.options, replay_buffer.pool

    def is_unfit(outputs: Sequence[store.TrajectoryTag]) -> bool:
        oldest = min(tag["min_global_steps"] for tag in outputs)
        newest = max(tag["max_global_steps"] for tag in outputs)
        is_long = any(tag["seq_len"] > longest_tok for tag in outputs)
        mixes = options.mixes_versions or options.is_separate  # there turns may differ under any strategy
        return is_long or (oldest < newest and not mixes)

    def fits(group: PromptGroup) -> bool:
        outputs = [output for trajectory in group.trajectories for output in trajectory.outputs or ()]
        is_short = all(len(output.prompt_ids) + len(output.response_ids) <= longest_tok for output in outputs)
        metric = options.filter.metric
        return is_short and all(
            metric is None or metric in output.rest.extra_fields["reward_extra_info"] for output in outputs
        )

    batch = store.batch_of(pool.carried_uids, partition_id=store.TRAIN)
    outputs_of: dict[tuple[str, str], list[store.TrajectoryTag]] = {}  # by group and trajectory
    for key, tag in zip(batch.keys, batch.tags, strict=True):
        uid, session, _ = key.split("_")
        outputs_of.setdefault((uid, session), []).append(tag)
    unfit = {uid for (uid, _), outputs in outputs_of.items() if is_unfit(outputs)}
    if options.draws_again:
        unfit.update(pool.carried_uids)
    unfit.update(group.uid for group in pool.buffered if not fits(group))
    pool.note_unfit(unfit)
    if unfit:
        logger.warning(
            "%d prompt groups of the checkpoint do not fit the options of this run, and are drawn again: responses "
            "are too long, were scored without algorithm.filter_groups.metric, or were kept by another "
            "async_dapo.rollout_strategy or stop_rule",
            len(unfit),
        )


def prompts_in_words(data_set: Any, prompt_key: str) -> str:
    """How many prompts a data set has, and a checksum of some, at equal distances: both tell it from another one. Empty
    for a class of the user's that holds no table of them.
    """
    table = getattr(data_set, "dataframe", None)
    if not isinstance(table, Dataset) or prompt_key not in table.column_names:
        return ""
    prompts = table.select_columns(prompt_key).with_format("arrow")  # pictures as they are stored, not opened
    some = [prompts[row].to_pylist() for row in range(0, len(prompts), 1 + len(prompts) // _PROMPTS_READ)]
    return f"{len(prompts):,} prompts, checksum {blake2b(repr(some).encode(), digest_size=4).hexdigest()}"


class KeptCheckpoints:
    """The checkpoints of this run: whole ones are deleted once newer ones are complete. verl deletes a model as soon as
    the next one is written, before the rest is.

    Attributes:
        run: that of every checkpoint it saves. A run that goes on from its newest one keeps it.

    Args:
        folder: holds all checkpoints.
        keep: how many stay [count]; None: all.
    """

    def __init__(self, folder: Path, keep: int | None) -> None:
        self._folder = folder
        self._keep = keep
        self._saved: list[Path] = []  # oldest first
        self.run = new_run()

    @classmethod
    def taking_over_from_verl(cls, config: DictConfig) -> "KeptCheckpoints":
        """Take `trainer.max_actor_ckpt_to_keep` over, and have verl keep one model more, in place. A checkpoint without
        its model or its critic is of no use: all of it goes at once.
        """
        trainer, keep = config.trainer, checkpoints_to_keep(config)
        trainer.max_actor_ckpt_to_keep = trainer.max_critic_ckpt_to_keep = None if keep is None else keep + 1
        return cls(Path(trainer.default_local_dir), keep)

    def resumed(self, folder: Path) -> None:
        """The run that has saved a checkpoint goes on from it. What it has saved before, up to that step, is deleted in
        its turn; what other runs have saved stays.
        """
        run, step = run_of(folder), step_of(folder)
        self.run = run or ""
        found = reversed(checkpoint_folders(self._folder))
        self._saved = [path for path in found if run_of(path) == run and step_of(path) <= step]
        for left in self._folder.glob(f"{STEP_FOLDER}*{_GONE}"):
            shutil.rmtree(left, ignore_errors=True)

    def saved(self, folder: Path) -> None:
        """A checkpoint is complete. Those that cannot be deleted yet are tried again after the next."""
        self._saved = [path for path in self._saved if path != folder] + [folder]
        if self._keep is not None:
            surplus, kept = self._saved[: -self._keep], self._saved[-self._keep :]
            self._saved = [path for path in surplus if not _delete(path)] + kept


def _delete(folder: Path) -> bool:
    """It loses its name first: what a kill leaves of it is no checkpoint."""
    gone = folder.with_name(folder.name + _GONE)
    try:
        if folder.exists():
            folder.rename(gone)
        if gone.exists():
            shutil.rmtree(gone)
    except OSError as error:
        logger.warning("old checkpoint %s cannot be deleted yet: %s", folder, error)
        return False
    return True
