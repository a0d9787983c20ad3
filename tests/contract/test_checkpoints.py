"""What a checkpoint leaves on the disk."""

import inspect
import shutil
from pathlib import Path

import pytest
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from recipe.async_dapo.training.trainer import POOL_FILE, QUEUE_FOLDER, delete_states_without_model


@pytest.mark.parametrize("model_is_here", [True, False])
def test_pools_and_stored_trajectories_go_with_their_models_and_only_where_models_are_seen(
    tmp_path: Path, model_is_here: bool
) -> None:
    for step in (1, 2, 3):
        (tmp_path / f"global_step_{step}" / QUEUE_FOLDER / "units").mkdir(parents=True)
        (tmp_path / f"global_step_{step}" / POOL_FILE).touch()
    if model_is_here:
        for step in (2, 3):
            (tmp_path / f"global_step_{step}" / "actor").mkdir()
    delete_states_without_model(tmp_path / "global_step_3")
    for name in (POOL_FILE, QUEUE_FOLDER):
        left = sorted(path.parent.name for path in tmp_path.glob(f"*/{name}"))
        assert left == [f"global_step_{step}" for step in ((2, 3) if model_is_here else (1, 2, 3))]


def test_a_state_that_cannot_be_deleted_ends_no_training_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old := tmp_path / "global_step_1" / QUEUE_FOLDER).mkdir(parents=True)
    (old.parent / POOL_FILE).touch()
    (tmp_path / "global_step_2" / "actor").mkdir(parents=True)

    def busy(path: Path) -> None:
        raise OSError(f"{path} is busy")

    with monkeypatch.context() as broken:
        broken.setattr(shutil, "rmtree", busy)
        delete_states_without_model(tmp_path / "global_step_2")
    assert old.exists()
    delete_states_without_model(tmp_path / "global_step_2")
    assert list(old.parent.iterdir()) == []


def test_the_folder_of_stored_trajectories_has_the_name_that_verl_gives_it() -> None:
    assert f'"{QUEUE_FOLDER}"' in inspect.getsource(PPOTrainer._save_checkpoint)
