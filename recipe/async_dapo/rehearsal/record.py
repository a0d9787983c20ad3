"""What the engines did over time, as lines of JSON."""

import asyncio
import json
from pathlib import Path

from .clock import CompressedClock
from .engine import EmulatedEngine

SAMPLING_S = 0.25  # between two samples [real s]


class EngineRecord:
    """Samples every engine now and then.

    A line holds the virtual time, and for every engine its running requests, waiting requests and tokens in the KV
    cache; and how late the changes of the batch since the last line were noticed [virtual s].
    """

    def __init__(self, path: Path, clock: CompressedClock) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", buffering=1 << 16)
        self._clock = clock
        self._engines: dict[int, EmulatedEngine] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, rank: int, engine: EmulatedEngine) -> None:
        self._engines[rank] = engine
        if self._timer is None:
            self._sample()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._file.close()

    def _sample(self) -> None:
        now_s = self._clock.now_s()
        engines = [engine for _, engine in sorted(self._engines.items())]
        late_s = [round(late, 3) for engine in engines for late in engine.take_lateness()]
        line = {
            "time_s": round(now_s, 3),
            "running": [engine.model.num_running for engine in engines],
            "waiting": [engine.model.num_waiting for engine in engines],
            "kv_tok": [engine.model.kv_tok_at(now_s) for engine in engines],
            "late_s": late_s,
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self._timer = asyncio.get_running_loop().call_later(SAMPLING_S, self._sample)
