"""What an engine held, sampled with its steps: for the report's timeline."""

from array import array
from dataclasses import dataclass
from typing import ClassVar

from ...async_dapo.core.concurrency import EngineLoad

MOST_SAMPLES = 256  # of a round and an engine


@dataclass(frozen=True, slots=True)
class LoadSample:
    """After a step of the engine, all data-parallel ranks together."""

    time_s: float
    running: int  # requests
    waiting: int  # requests, in the engine
    kv: float  # share of the KV cache in use [0-1], of the fullest rank


@dataclass(frozen=True, slots=True)
class PackedSamples:
    """`LoadSample`s as they ride on the answer to a stop, which has to be quick.

    Attributes:
        shift_s: from their clock to seconds since the epoch.
    """

    time_s: array
    running: array
    waiting: array
    kv: array
    shift_s: float

    def unpack(self) -> list[LoadSample]:
        columns = zip(self.time_s, self.running, self.waiting, self.kv, strict=True)
        return [LoadSample(time_s + self.shift_s, *rest) for time_s, *rest in columns]


class LoadSamples:
    """What an engine held over a round, in a bounded number of samples: at first one a step. When there are too many,
    every second one is dropped, and from then on half as many are taken.

    Args:
        limit: samples kept at most [count, >= 2].
    """

    def __init__(self, limit: int = MOST_SAMPLES) -> None:
        self._limit = limit
        self._every = 1
        self._steps = 0
        self._columns: list[array] = [array(typecode) for typecode in "diif"]

    def is_due(self) -> bool:
        """Whether this step is to be taken; asked once a step."""
        self._steps += 1
        return self._steps % self._every == 0

    def add(self, time_s: float, running: int, waiting: int, kv: float) -> None:
        for column, value in zip(self._columns, (time_s, running, waiting, kv), strict=True):
            column.append(value)
        if len(self._columns[0]) == self._limit:
            for column in self._columns:
                del column[::2]
            self._every *= 2

    def packed(self, *, shift_s: float = 0.0) -> PackedSamples:
        """In order of time."""
        time_s, running, waiting, kv = (array(column.typecode, column) for column in self._columns)
        return PackedSamples(time_s, running, waiting, kv, shift_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledLoad(EngineLoad):
    """What an engine says at a stop."""

    LATEST: ClassVar[tuple[str, ...]] = (*EngineLoad.LATEST, "samples")

    samples: PackedSamples
