"""Whether a rehearsal measured the schedule, or this machine."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAX_LATE_SHARE = 0.02  # of a step: how late an engine may notice that its batch changes
MAX_CPU_SHARE = 0.5  # of the machine, used by the run itself
_PERCENTILE = 99.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """
    Attributes:
        engine_late_share: lateness that 99 of 100 changes of a batch stay below, over a step.
        trainer_late_share: what the trainer's own work took longer than modelled, over a step.
        cpu_share: of all cores [0-1].
        largest_speedup: with which the run would have been valid, as far as this one tells.
    """

    engine_late_share: float
    trainer_late_share: float
    cpu_share: float
    largest_speedup: float
    is_valid: bool

    def __str__(self) -> str:
        shares = (
            f"engines {100 * self.engine_late_share:.2f} % of a step late, trainer {100 * self.trainer_late_share:.2f} "
            f"%, CPU {100 * self.cpu_share:.0f} % of the machine"
        )
        if self.is_valid:
            return f"Valid: {shares}."
        return f"INVALID: {shares}; this machine is too slow, or too busy: use rehearsal.speedup={self.advised:g}."

    @property
    def advised(self) -> float:
        """The largest valid speed-up, rounded down to two digits."""
        return float(f"{0.95 * self.largest_speedup:.2g}")


def judge(
    *, late_s: Sequence[float], trainer_late_s: float, step_s: float, cpu_share: float, speedup: float
) -> Validity:
    """Real delays and CPU seconds stay the same, so that each share is proportional to the speed-up.

    Args:
        late_s: of every change of a batch [virtual s].
        trainer_late_s: a step [virtual s].
        step_s: mean [virtual s].
    """
    engine = float(np.percentile(late_s, _PERCENTILE, method="lower")) / step_s if late_s else 0.0
    trainer = trainer_late_s / step_s
    excess = max(engine / MAX_LATE_SHARE, trainer / MAX_LATE_SHARE, cpu_share / MAX_CPU_SHARE)
    return Validity(
        engine_late_share=engine,
        trainer_late_share=trainer,
        cpu_share=cpu_share,
        largest_speedup=speedup / excess if excess else speedup,
        is_valid=excess <= 1,
    )
