"""What a checkpoint lacks, or has otherwise than this run: verl and TransferQueue would end it when engines are up."""

import json
import pickle
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from ...config.derived import training_gpus
from ...config.values import refused
from ...record.checkpoint_folder import ANEW, absent_parts, rank_files, read_complete

STORAGE_UNITS_FILE = "transfer_queue/simple_storage/storage_unit_info.json"  # TransferQueue's; a list of all units


def _check_critic(config: DictConfig, folder: Path) -> None:
    """verl would look for its files when engines are up."""
    from verl.trainer.ppo.utils import need_critic

    saved = {name.partition("/")[0] for name in read_complete(folder).files}
    if "actor" in saved and "critic" not in saved and need_critic(config):
        key = "critic.enable" if config.critic.enable else "algorithm.adv_estimator"
        raise refused(config, key, f"{folder} holds no critic; train without one, or {ANEW}")


def _check_parts(config: DictConfig, folder: Path) -> None:
    """verl would miss their files when engines are up."""
    from verl.trainer.ppo.utils import need_critic

    complete, needed = read_complete(folder), {"actor_rollout_ref.actor": True, "critic": need_critic(config)}
    for key, is_needed in needed.items():
        if is_needed and (absent := absent_parts(complete, key.rpartition(".")[2])):
            remedy = f"{folder} was saved without {' and '.join(absent)}, and no run goes on from it; {ANEW}"
            raise refused(config, f"{key}.checkpoint.load_contents", remedy)


def _check_ranks(config: DictConfig, folder: Path) -> None:
    """With FSDP and VeOmni each rank looks for files that are named after the number of ranks, when engines are up.
    Megatron shares its files out anew.
    """
    found = {ranks for ranks, _ in rank_files(folder)}
    if found and found != {ranks := training_gpus(config)}:
        raise refused(
            config,
            "trainer.n_gpus_per_node",
            f"{folder} was saved by {' and by '.join(map(str, sorted(found)))} training GPUs, and with "
            f"trainer.nnodes={config.trainer.nnodes} this makes {ranks}; train on as many as before, or {ANEW}",
        )


def _check_storage_units(config: DictConfig, folder: Path) -> None:
    """TransferQueue gives each storage unit back what one had, when engines are up."""
    file = folder / STORAGE_UNITS_FILE
    if not file.exists():  # stored by another backend
        return
    saved, key = len(json.loads(file.read_text())), "transfer_queue.backend.SimpleStorage.num_data_storage_units"
    if saved != OmegaConf.select(config, key):
        raise refused(
            config,
            key,
            f"{folder} holds the trajectories of {saved} storage units; set {saved} (each takes a CPU of Ray's), or "
            f"{ANEW}",
        )


def _check_data_workers(config: DictConfig, folder: Path) -> None:
    """verl's data loader asserts, when it is asked for the first prompts, that it has as many processes as before."""
    import torch  # a second that a run which begins anew need not wait for

    try:
        state = torch.load(folder / "data.pt", weights_only=True)
    except pickle.UnpicklingError:  # a data set or sampler of the user's may keep there whatever it likes
        return
    saved = state["_snapshot"]["_main_snapshot"]["_num_workers"] if "_snapshot" in state else 0
    if saved != config.data.dataloader_num_workers:
        remedy = f"{folder} holds the place in the data of {saved} processes; set {saved}"
        raise refused(config, "data.dataloader_num_workers", remedy)


CHECKS = (_check_critic, _check_parts, _check_ranks, _check_storage_units, _check_data_workers)
