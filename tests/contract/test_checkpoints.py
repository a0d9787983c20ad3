"""What a checkpoint leaves on the disk, under which names, and what verl does with it."""

import importlib
import inspect
import shutil
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager

import recipe.async_dapo
from recipe.async_dapo.config import ConfigError
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo.record.checkpoint_folder import COMPLETE_FILE, STEP_FOLDER, read_pool
from recipe.async_dapo.startup.output_check import NEWEST_FILE
from recipe.async_dapo.training import trainer as trainer_module
from recipe.async_dapo.training.checkpoints import KeptCheckpoints, from_frames
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

from ..support.checkpoints import write_checkpoint

FULL = "/dev/full"  # every write to it fails as on a full disk


def kept(root: Path, keep: int | None) -> KeptCheckpoints:
    trainer = {"default_local_dir": str(root), "max_actor_ckpt_to_keep": keep, "max_critic_ckpt_to_keep": None}
    return KeptCheckpoints.taking_over_from_verl(OmegaConf.create({"trainer": trainer}))


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("global_step_*"))


@pytest.mark.parametrize(("keep", "left"), [(None, [1, 2, 3, 4]), (0, [1, 2, 3, 4]), (1, [4]), (2, [3, 4])])
def test_given_more_checkpoints_than_are_kept_when_the_next_is_complete_then_old_ones_go_whole(
    tmp_path: Path, keep: int | None, left: list[int]
) -> None:
    checkpoints = kept(tmp_path, keep)
    for step in range(1, 5):
        checkpoints.saved(write_checkpoint(tmp_path, step))
    assert names(tmp_path) == [f"global_step_{step}" for step in left]


def test_given_a_resume_when_the_next_is_complete_then_those_of_the_life_before_count_and_later_ones_stay(
    tmp_path: Path,
) -> None:
    for step in (1, 2, 3, 9):
        write_checkpoint(tmp_path, step)
    (tmp_path / "global_step_1_best").mkdir()
    checkpoints = kept(tmp_path, 2)
    checkpoints.resumed(3)
    checkpoints.saved(write_checkpoint(tmp_path, 4))
    assert names(tmp_path) == ["global_step_1_best", "global_step_3", "global_step_4", "global_step_9"]


def test_given_a_run_that_began_anew_when_it_saves_then_checkpoints_of_others_stay(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1)
    kept(tmp_path, 1).saved(write_checkpoint(tmp_path, 4))
    assert names(tmp_path) == ["global_step_1", "global_step_4"]


def test_a_checkpoint_that_cannot_be_deleted_ends_no_training_is_not_complete_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = kept(tmp_path, 1)
    checkpoints.saved(old := write_checkpoint(tmp_path, 1))

    def busy(path: Path) -> None:
        raise OSError(f"{path} is busy")

    with monkeypatch.context() as broken:
        broken.setattr(shutil, "rmtree", busy)
        checkpoints.saved(write_checkpoint(tmp_path, 2))
    assert old.exists() and not (old / COMPLETE_FILE).exists()
    checkpoints.saved(write_checkpoint(tmp_path, 3))
    assert names(tmp_path) == ["global_step_3"]


@pytest.mark.parametrize("keep", [1, 2])
def test_given_verl_s_own_rotation_when_it_has_written_a_model_then_the_checkpoint_before_is_still_whole(
    tmp_path: Path, keep: int
) -> None:
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


def test_verl_names_folders_and_the_newest_step_as_the_checks_expect_and_saves_the_trajectories_of_this_trainer() -> (
    None
):
    source = inspect.getsource(PPOTrainer._save_checkpoint)
    assert f'f"{STEP_FOLDER}{{self.global_steps}}"' in source and f'"{NEWEST_FILE}"' in source
    assert 'if self.trainer_mode != "sync":' in source and '"transfer_queue"' in source


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports modules of a copy of the recipe, as `experiments.my_dapo`."""
    package = "experiments.my_dapo"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(recipe.async_dapo.__path__[0], tmp_path / "experiments" / "my_dapo", ignore=ignored)
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda name: importlib.import_module(f"{package}.{name}")
    for name in [name for name in sys.modules if name.startswith("experiments")]:
        del sys.modules[name]


def test_given_a_checkpoint_of_a_recipe_under_another_name_when_its_folder_was_moved_then_this_one_reads_it(
    elsewhere: Callable[[str], Any], tmp_path: Path
) -> None:
    trajectory, records = elsewhere("core.trajectory"), elsewhere("core.pool")
    state, folder = elsewhere("training.checkpoints"), tmp_path / "global_step_4"
    packed = elsewhere("rollout.packed_output").PackedOutput(
        rest=AgentLoopOutput(prompt_ids=[], response_ids=[], response_mask=[], metrics=AgentLoopMetrics()),
        stamps=((3, 1),),
        prompt_ids=array("i", [1]),
        response_ids=array("i", [2]),
        response_mask=bytes([1]),
        response_logprobs=array("f", [-0.5]),
    )
    ids, log_probs = array("i", [7, 8]), array("f", [-0.5, -0.25])
    segment = trajectory.Segment(policy_version=3, token_ids=ids, rollout_log_probs=log_probs)
    turn = trajectory.Turn(prompt_digest=b"d", prompt_len_tok=1, segments=[segment])
    group = trajectory.PromptGroup(
        uid="a",
        prompt={"data_source": "sums"},
        drawn_at_step=3,
        trajectories=[
            trajectory.Trajectory(session_id=0, age=1, turns=[turn]),
            trajectory.Trajectory(session_id=1, outputs=[packed]),
        ],
    )
    ledger = elsewhere("core.ledger").Ledger(drawn=1)
    pool = records.PoolState(waiting=(), buffered=(group,), carried=(), ledger=ledger)
    with elsewhere("record.checkpoint_folder").saving(folder, state.to_frames(state.RolloutState(pool=pool))):
        pass
    (tmp_path / "moved").mkdir()
    folder = folder.rename(tmp_path / "moved" / "global_step_4")
    (read,) = from_frames(read_pool(folder)).pool.buffered
    assert type(read) is PromptGroup
    assert read.trajectories[0].raw_response_ids == [7, 8] and read.trajectories[0].stamps == ((3, 2),)
    assert read.trajectories[1].outputs[0].fields()["rollout_log_probs"].tolist() == [-0.5]


def write_text() -> None:
    with open(FULL, "w") as file:
        file.write("text")


@pytest.mark.parametrize("write", [write_text, lambda: torch.save({"weight": torch.zeros(100_000)}, FULL)])
def test_given_a_full_disk_when_a_checkpoint_is_written_then_the_error_names_disk_path_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[], None]
) -> None:
    """Of which torch's own error says nothing."""
    trainer: Any = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
    trainer.config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}})
    trainer.global_steps = 8
    monkeypatch.setattr(PPOTrainer, "_save_checkpoint", lambda self: write())
    trainer.replay_buffer = SimpleNamespace(state=lambda: None)
    monkeypatch.setattr(trainer_module, "to_frames", lambda state: [])
    with pytest.raises(ConfigError) as raised:
        trainer._save_checkpoint()
    message = str(raised.value)
    assert message.startswith(f"trainer.default_local_dir={tmp_path}: {tmp_path}/global_step_8 could not be written")
    assert "the disk mounted at /" in message and "GB free)" in message and "free some space" in message
    monkeypatch.setattr(PPOTrainer, "_save_checkpoint", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer._save_checkpoint()
