"""A checkpoint that verl or TransferQueue could not read when engines are up is refused before a run starts."""

import asyncio
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from transfer_queue.storage.managers.simple_storage_manager import AsyncSimpleStorageManager

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.extensions.checks.checkpoint import CHECKS
from recipe.async_dapo.record.checkpoint_folder import saving
from recipe.async_dapo.startup.checkpoint_to_resume import NEWEST_FILE, check_resume

from ....support.checkpoints import ANEW_OF_ITS_OWN, FILES, PARTS, write_checkpoint


def check(config) -> None:
    check_resume(config, *CHECKS)


@pytest.mark.parametrize("part", ["model", "optimizer", "extra"])
@pytest.mark.parametrize("names", [PARTS, ("model/dist_ckpt/a", "optimizer/dist_ckpt/a", "extra/dist_ckpt/a")])
def test_given_a_checkpoint_that_was_saved_to_be_read_when_resumed_then_what_it_lacks_is_named(
    run, tmp_path, part, names
):
    """verl would miss its files when engines are up."""
    own = f"trainer.default_local_dir={tmp_path}"
    left = [f"actor/{name}" for name in names if not name.startswith(part[:5])]
    folder = write_checkpoint(tmp_path, 4, files=[*left, "actor/huggingface/config.json", *FILES[3:]])
    said = f"{folder} was saved without {part}, and no run goes on from it; begin"
    with pytest.raises(ConfigError, match=rf"^actor_rollout_ref\.actor\.checkpoint\.load_contents=.*: {said}"):
        check(run(own))
    check(run(own, "trainer.resume_mode=disable"))
    write_checkpoint(tmp_path, 4, files=FILES[3:])  # of a node that trains nothing
    check(run(own))


@pytest.mark.parametrize(
    ("options", "blamed"),
    [
        (["critic.enable=True"], "critic.enable=True"),
        (["algorithm.adv_estimator=gae"], "algorithm.adv_estimator=gae"),
    ],
)
def test_given_a_critic_that_the_checkpoint_lacks_when_resumed_then_it_is_refused(run, tmp_path, options, blamed):
    """verl would miss its files when engines are up."""
    own = f"trainer.default_local_dir={tmp_path}"
    folder = write_checkpoint(tmp_path, 4)
    with pytest.raises(
        ConfigError, match=f"^{blamed}: {folder} holds no critic; train without one, or {ANEW_OF_ITS_OWN}"
    ):
        check(run(own, *options))
    write_checkpoint(tmp_path, 4, further=[f"critic/{part}" for part in PARTS])
    check(run(own, *options))


@pytest.mark.parametrize("mode", ["auto", "resume_path"])
def test_given_a_checkpoint_of_more_ranks_when_resumed_then_the_start_is_refused_with_both_numbers(
    run, tmp_path: Path, mode: str
) -> None:
    folder = write_checkpoint(tmp_path, 4)
    (folder / "actor" / "model_world_size_4_rank_3.pt").write_text("verl's")
    own = [f"trainer.default_local_dir={tmp_path}", f"trainer.resume_mode={mode}", "trainer.n_gpus_per_node=2"]
    own += [f"trainer.resume_from_path={folder}"] if mode == "resume_path" else []
    with pytest.raises(ConfigError, match=rf"^trainer.n_gpus_per_node=2: {folder} was saved by 4 .* makes 2; train on"):
        check(run(*own))
    check(run(*own, "trainer.nnodes=2"))
    (folder / "actor" / "model_world_size_2_rank_1.pt").write_text("verl's, of a run that saved into the same folder")
    with pytest.raises(ConfigError, match=rf"{folder} was saved by 2 and by 4 training GPUs"):
        check(run(*own))


def test_given_a_checkpoint_of_more_storage_units_when_resumed_then_the_start_is_refused_with_both_numbers(
    run, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path, 4)
    queue = Mock(spec=AsyncSimpleStorageManager, storage_manager_id="queue", storage_unit_infos=dict.fromkeys("abcd"))
    asyncio.run(AsyncSimpleStorageManager.save_checkpoint(queue, str(folder / "transfer_queue")))
    key, own = "transfer_queue.backend.SimpleStorage.num_data_storage_units", f"trainer.default_local_dir={tmp_path}"
    with pytest.raises(ConfigError, match=rf"^{key}=2: {folder} holds the trajectories of 4 storage units; set 4 "):
        check(run(own, f"{key}=2"))
    check(run(own, f"{key}=4"))
    check(run(own, f"{key}=2", "trainer.resume_mode=disable"))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("saved", [0, 1])
def test_given_a_checkpoint_of_other_data_processes_when_resumed_then_the_start_is_refused_with_both_numbers(
    run, tmp_path: Path, saved: int
) -> None:
    loader = StatefulDataLoader(range(9), num_workers=saved)
    next(iter(loader))
    with saving(folder := tmp_path / "global_step_4", [b"pool"]):
        torch.save(loader.state_dict(), folder / "data.pt")
    (tmp_path / NEWEST_FILE).write_text("4")
    key, own = "data.dataloader_num_workers", f"trainer.default_local_dir={tmp_path}"
    with pytest.raises(ConfigError, match=rf"^{key}=8: {folder} holds the place .* of {saved} processes; set {saved}$"):
        check(run(own, f"{key}=8"))
    check(run(own, f"{key}={saved}"))
