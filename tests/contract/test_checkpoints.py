"""What a checkpoint leaves on the disk, under which names, and what verl does with it."""

import shutil
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager

from recipe.async_dapo.record import checkpoint_folder
from recipe.async_dapo.record.checkpoint_folder import COMPLETE_FILE, absent_parts, new_run, read_complete, verify
from recipe.async_dapo.training import run_checkpoints
from recipe.async_dapo.training.run_checkpoints import KeptCheckpoints
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer
from recipe.async_dapo_lab.rehearsal.worker import EmulatedRank

from ..support.checkpoints import FILES, write_checkpoint
from ..support.composed_runs import compose_run

FULL = "/dev/full"  # every write to it fails as on a full disk


def kept(root: Path, keep: int | None) -> KeptCheckpoints:
    trainer = {"default_local_dir": str(root), "max_actor_ckpt_to_keep": keep, "max_critic_ckpt_to_keep": None}
    return KeptCheckpoints.taking_over_from_verl(OmegaConf.create({"trainer": trainer}))


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("global_step_*"))


@pytest.mark.parametrize(
    ("keep", "left"), [(None, [1, 2, 3, 4]), (-1, [1, 2, 3, 4]), (0, [1, 2, 3, 4]), (1, [4]), (2, [3, 4])]
)
def test_given_more_checkpoints_than_are_kept_when_the_next_is_complete_then_old_ones_go_whole(tmp_path, keep, left):
    checkpoints = kept(tmp_path, keep)
    for step in range(1, 5):
        checkpoints.saved(write_checkpoint(tmp_path, step))
    assert names(tmp_path) == [f"global_step_{step}" for step in left]


def test_given_a_resume_when_the_next_is_complete_then_those_of_the_life_before_count_and_later_ones_stay(tmp_path):
    for step in (1, 2, 3, 9):
        newest = write_checkpoint(tmp_path, step, run="this")
    (tmp_path / "global_step_1_best").mkdir()
    checkpoints = kept(tmp_path, 2)
    (tmp_path / "global_step_0.gone").mkdir()  # whose deletion was interrupted
    checkpoints.resumed(newest.with_name("global_step_3"))
    checkpoints.saved(write_checkpoint(tmp_path, 4))
    assert names(tmp_path) == ["global_step_1_best", "global_step_3", "global_step_4", "global_step_9"]


@pytest.mark.parametrize("run", ["", "this"])  # without a name: from before runs had one
def test_given_checkpoints_of_others_beside_a_resume_s_when_it_saves_then_only_its_own_go(tmp_path, run):
    """Of a folder whose note cannot be read nobody knows whose it is."""
    for step, saved_by in ((1, run), (2, "another"), (3, run), (4, run)):
        folder = write_checkpoint(tmp_path, step, run=saved_by)
    (tmp_path / "global_step_3" / COMPLETE_FILE).unlink()
    checkpoints = kept(tmp_path, 1)
    checkpoints.resumed(folder)
    assert checkpoints.run == run
    checkpoints.saved(write_checkpoint(tmp_path, 5, run=run))
    assert names(tmp_path) == ["global_step_2", "global_step_3", "global_step_5"]


def test_given_runs_that_begin_one_after_another_then_their_names_sort_so_and_differ_within_a_second(monkeypatch):
    moments = [datetime(2026, 9, 30, 9, tzinfo=UTC), datetime(2026, 10, 1, 8, tzinfo=UTC)]
    clock = iter([*moments, *moments])
    monkeypatch.setattr(checkpoint_folder, "datetime", SimpleNamespace(now=lambda zone: next(clock)))
    first, second, like_the_first, _ = (new_run() for _ in range(4))
    assert max(first, like_the_first) < second and first != like_the_first


def test_given_a_run_that_began_anew_when_it_saves_then_checkpoints_of_others_stay(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1)
    kept(tmp_path, 1).saved(write_checkpoint(tmp_path, 4))
    assert names(tmp_path) == ["global_step_1", "global_step_4"]


def test_a_checkpoint_that_cannot_be_deleted_ends_no_training_is_not_complete_and_is_tried_again(tmp_path, monkeypatch):
    checkpoints = kept(tmp_path, 1)
    checkpoints.saved(old := write_checkpoint(tmp_path, 1))

    def busy(path: Path) -> None:
        raise OSError(f"{path} is busy")

    with monkeypatch.context() as broken:
        broken.setattr(shutil, "rmtree", busy)
        checkpoints.saved(write_checkpoint(tmp_path, 2))
    assert names(tmp_path) == [f"{old.name}.gone", "global_step_2"]
    checkpoints.saved(write_checkpoint(tmp_path, 3))
    assert names(tmp_path) == ["global_step_3"]


@pytest.mark.parametrize("keep", [1, 2])
def test_given_verl_s_own_rotation_when_it_has_written_a_model_then_the_checkpoint_before_is_still_whole(
    tmp_path, keep
):
    trainer = {"default_local_dir": str(tmp_path), "max_actor_ckpt_to_keep": keep, "max_critic_ckpt_to_keep": keep}
    checkpoints = KeptCheckpoints.taking_over_from_verl(config := OmegaConf.create({"trainer": trainer}))
    manager = BaseCheckpointManager.__new__(BaseCheckpointManager)
    manager.previous_saved_paths = []
    for step in range(1, 6):
        manager.ensure_checkpoint_capacity(config.trainer.max_actor_ckpt_to_keep)
        folder = write_checkpoint(tmp_path, step)
        manager.register_checkpoint(str(folder / "actor"), config.trainer.max_actor_ckpt_to_keep)
        before = sorted(tmp_path.glob("global_step_*/actor/model.pt"))
        assert len(before) == min(step, keep + 1)
        checkpoints.saved(folder)
        assert len(names(tmp_path)) == min(step, keep)


class Copies(CheckpointCallback):
    """A user's callback that looks at what it would copy."""

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool, **kwargs: Any) -> None:
        verify(Path(checkpoint_dir))
        self.copied = [*getattr(self, "copied", []), (global_step, checkpoint_dir)]


def test_given_a_callback_of_the_user_s_when_a_checkpoint_is_saved_then_it_finds_it_complete(tmp_path, monkeypatch):
    """A copy without the note that it is complete could not be resumed from."""
    name = f"trainer.checkpoint_callback_class={Copies.__module__}.{Copies.__name__}"
    trainer: Any = AsyncDAPOTrainer(compose_run([name, f"trainer.default_local_dir={tmp_path}", "critic.enable=False"]))
    trainer.global_steps = 8
    trainer.actor_rollout_wg = SimpleNamespace(save_checkpoint=lambda *_, **__: None)
    trainer.train_dataloader, trainer.train_dataset = SimpleNamespace(state_dict=dict), None
    monkeypatch.setattr(trainer_base.tq, "save_checkpoint", lambda *_, **__: None)
    trainer._save_checkpoint()
    assert trainer._on_complete.copied == [(8, f"{tmp_path}/global_step_8")]


def write_text() -> None:
    with open(FULL, "w") as file:
        file.write("text")


@pytest.mark.parametrize("write", [write_text, lambda: torch.save({"weight": torch.zeros(100_000)}, FULL)])
def test_given_a_full_disk_when_a_checkpoint_is_written_then_the_error_ends_with_path_room_and_remedy(
    tmp_path, monkeypatch, write
):
    """Of which torch's own error says nothing."""
    trainer: Any = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
    trainer.config = OmegaConf.create(
        {
            "trainer": {"default_local_dir": str(tmp_path)},
            "actor_rollout_ref": {"rollout": {"enable_rollout_routing_replay": False}},
            "data": {"prompt_key": "prompt"},
        }
    )
    trainer.global_steps, trainer.train_dataset, trainer._model = 8, None, None
    trainer._checkpoints = kept(tmp_path, None)
    monkeypatch.setattr(PPOTrainer, "_save_checkpoint", lambda self: write())
    trainer.replay_buffer = SimpleNamespace(state=lambda: SimpleNamespace(needed_extensions=()))
    monkeypatch.setattr(run_checkpoints, "to_frames", lambda state: [])
    monkeypatch.setattr(run_checkpoints, "lasting_options", lambda config: {})
    with pytest.raises(RuntimeError) as raised:
        trainer._save_checkpoint()
    last = str(raised.value).splitlines()[-1]
    assert last.startswith(f"{tmp_path}/global_step_8 could not be written whole: ") and "GB are free there" in last
    monkeypatch.setattr(PPOTrainer, "_save_checkpoint", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer._save_checkpoint()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_a_data_loader_notes_its_number_of_processes_where_the_check_before_a_resume_looks() -> None:
    """torchdata has no other way to ask a state for it. Without processes there is no such note."""
    loaders = [StatefulDataLoader(range(9), num_workers=processes) for processes in (0, 2)]
    alone, of_two = ((next(iter(loader)), loader.state_dict())[1] for loader in loaders)
    assert "_snapshot" not in alone and of_two["_snapshot"]["_main_snapshot"]["_num_workers"] == 2


def test_given_what_a_rehearsal_saves_when_resumed_then_no_part_of_the_model_is_missed(tmp_path):
    """Faults are rehearsed over resumes (`test_faults.py`, with --nightly)."""
    EmulatedRank.save_checkpoint(None, str(tmp_path / "actor"))
    saved = [f"actor/{file.name}" for file in (tmp_path / "actor").iterdir()]
    assert saved and not absent_parts(read_complete(write_checkpoint(tmp_path, 1, files=[*saved, *FILES[3:]])), "actor")
