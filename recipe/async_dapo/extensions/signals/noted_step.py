"""The step that a run is in, for its driver: it is noted where it can be read whatever becomes of the trainer."""

import threading
from typing import TYPE_CHECKING, Any

from ...config.options import AsyncDAPOConfig
from ...training.observer import Observer

if TYPE_CHECKING:  # which makes the observer
    from ...training.run_trainer import RunTrainer

PATIENCE_S = 2.0  # for a cluster to say where the run was; it may have been told to end, too
_STEP_KEY = b"async_dapo_step_of_job_"


class StepNotes(Observer):
    """The observer that notes each step as its rollout begins."""

    _trainer: "RunTrainer"

    def __init__(self, options: AsyncDAPOConfig) -> None:
        pass

    def training_begins(self, trainer: "RunTrainer") -> None:
        self._trainer = trainer

    def begin_phase(self, name: str | None) -> None:
        if name == "rollout":
            note_step(self._trainer.global_steps, self._trainer.total_training_steps)


def note_step(step: int, total_steps: int) -> None:
    """The trainer begins a step."""
    import ray

    if ray.is_initialized():
        _step_store()._internal_kv_put(_step_key(), f"{step} of {total_steps}".encode())


def noted_step() -> str | None:
    """The step that the trainer of this job has begun last, for example `7 of 300`; None if nobody can say."""
    import ray

    if not ray.is_initialized():
        return None
    key, found = _step_key(), list[bytes | None]()
    asking = threading.Thread(target=lambda: found.append(_step_store()._internal_kv_get(key)), daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return found[0].decode() if found and found[0] is not None else None


def _step_store() -> Any:
    """Of the cluster's head, which needs no actor that could answer."""
    from ray.experimental import internal_kv

    return internal_kv


def _step_key() -> bytes:
    import ray

    return _STEP_KEY + ray.get_runtime_context().get_job_id().encode()
