"""What a run tells beside its metrics: the trainer calls one recorder, that of `async_dapo.recorder` or this one."""

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

from ..core.outcome import CauseCounts
from ..engines.load_balancer import LoadBalancerStats
from ..rollout.reports import RoundRecord


class Recorder:
    """Counts what groups fail of, for the run's record. A subclass takes the rest, which this one lets pass."""

    def __init__(self) -> None:
        self._cause_counts = CauseCounts()
        self._causes: Counter[tuple[str, str]] = Counter()

    def round_closed(self, step: int, record: RoundRecord) -> None:
        self._causes.update(self._cause_counts.count(record.summary.outcomes))

    def validation_closed(self, record: RoundRecord) -> None:
        self.engines_asked(record.balancer)
        for (reason, what), count in self._cause_counts.count(record.summary.outcomes).items():
            self._causes[f"in validation, {reason}", what] += count

    def take_causes(self) -> dict[str, int]:
        """What groups have failed of since this was asked last -> groups."""
        causes, self._causes = self._causes, Counter()
        return {f"{reason}: {what}" if what else reason: count for (reason, what), count in causes.items()}

    def engines_asked(self, balancer: LoadBalancerStats) -> None:
        """What engines held, each time the load balancer was asked: in the order of time."""

    def begin_phase(self, name: str) -> None:
        """The trainer turns to something else, for example to the rollout."""

    def end_phase(self) -> None: ...

    def join(self, loggers: dict[str, Any]) -> None:
        """Add to verl's loggers, which are called with the metrics of every step, in place."""

    def begin_record(self, folder: Path, *, started_s: float, first_step: int) -> None:
        """The record of the run begins in this folder, or goes on there from a step.

        Args:
            started_s: when the run was started first [s since the epoch].
        """


def load_recorder(name: str | None) -> Recorder:
    """
    Args:
        name: of a subclass, `package.module.Class`; None: the class above.
    """
    if name is None:
        return Recorder()
    module, _, class_name = name.rpartition(".")
    made = getattr(importlib.import_module(module), class_name)()
    assert isinstance(made, Recorder)
    return made
