"""When the trainer's work between two rollouts would be done."""

import time

from .clock import CompressedClock


class TrainingSchedule:
    """Adds up modelled seconds and waits until they have passed.

    What this process really does meanwhile (data in and out of TransferQueue, advantages) is part of them: it is only
    late where that takes longer.
    """

    def __init__(self, clock: CompressedClock) -> None:
        self._clock = clock
        self._due_s = 0.0

    def begin(self) -> None:
        """The modelled work begins now."""
        self._due_s = self._clock.now_s()

    def spend(self, seconds: float) -> float:
        """Wait until so many more virtual seconds have passed. Returns the virtual time."""
        self._due_s += seconds
        time.sleep(self._clock.real_until(self._due_s))
        return self._clock.now_s()

    @property
    def late_s(self) -> float:
        """How long ago all modelled work was due [virtual s]."""
        return max(0.0, self._clock.now_s() - self._due_s)
