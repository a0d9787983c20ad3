"""A quarter of an hour on one GPU, used well: parts in order of worth, in waves, each with a time limit.

python -m benchmarks.gpu_day.run --output "$OUT" --minutes 12

Start-up takes longer than what is measured, so a wave's parts start together. Checks do their work at once; each
system waits once it has started up, and trains when it has its turn, alone on the GPU. What each part finds is written
as it comes: `parts.jsonl` (a line a part: how it ended, seconds, last words), `runs.csv`, `gpu_check_*.json`,
`calibration.jsonl`. A part that hangs is ended at the limit, and the next wave runs; a wave that the minutes leave no
time for is named. `--device cpu` rehearses all of it with small sizes.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu_day.turns import TURN, waiting
from benchmarks.support.supervised_training import ROOT
from recipe.async_dapo_lab.gpu_check.supervised import last_words
from recipe.async_dapo_lab.quickstart.supervision import exit_on_signals

CHECK = "recipe.async_dapo_lab.gpu_check"
COMPARE = "benchmarks.gpu_day.compare"
ENDING_S = 15.0  # in which a part ends by itself, its children and its results included
START_S = 240.0  # after which checks are ended, and systems that still start up are waited for no longer
LOOK_S = 0.2
SLOWER = {"cuda": 1.0, "cpu": 4.0}
NEWEST_LOGS, LAST_LINES = 4, 60  # that a part which failed brings back
# FlashInfer is not packed, and vLLM 0.24.0 imports it for its sampler; without a network no address is found out.
ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_HOST_IP": "127.0.0.1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One command."""

    name: str
    module: str
    arguments: tuple[str, ...]
    brings: dict[str, str] = field(default_factory=dict)  # files of its folder that are results, and their names there


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Parts that start together."""

    limit_s: float
    parts: tuple[Part, ...]


def check(theme: int, name: str, **also: str) -> Part:
    files = {"gpu_check.json": f"gpu_check_{name}.json", **also}
    return Part(name=name, module=CHECK, arguments=("--only", str(theme)), brings=files)


def compare(system: str, *, model: str = "0.6b", steps: int = 6) -> Part:
    name, options = system if model == "0.6b" else model, ("--model", model, "--steps", str(steps))
    return Part(name=name, module=COMPARE, arguments=(system, *options))


# A machine with 80 GB has room for two systems and a check at once.
WAVES = (
    Wave(
        limit_s=360.0,
        parts=(
            check(3, "speed", **{"speed/speed.jsonl": "calibration.jsonl"}),
            compare("partial"),
            compare("verl colocate_async, 0.05 s poll"),
        ),
    ),
    Wave(
        limit_s=360.0,
        parts=(
            compare("verl colocate_async, 0.05 s poll, no pass"),
            compare("partial_stale_kv"),
        ),
    ),
    Wave(limit_s=300.0, parts=(compare("partial", model="experts", steps=3),)),
    Wave(limit_s=START_S + ENDING_S, parts=(check(2, "training"),)),  # without a turn, a wave ends here
)


class Running:
    """A part's process. It ends with this context."""

    def __init__(self, part: Part, *, device: str, output: Path, limit_s: float) -> None:
        self.part, self._output = part, output
        # Results alone are in `output`.
        self._folder = output.with_name("work") / part.name.replace(" ", "_").replace(",", "")
        self._folder.mkdir(parents=True, exist_ok=True)
        self.turn = self._folder / "turn"
        for file in (self.turn, waiting(self.turn)):
            file.unlink(missing_ok=True)
        places = ("--output", output, "--work", self._folder) if self.is_system else ("--output", self._folder)
        options = ("--device", device, *map(str, places), "--timeout-s", str(limit_s - ENDING_S))
        self._began_s, self._was_ended = time.monotonic(), False
        with (self._folder / "part.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", part.module, *part.arguments, *options],
                env=os.environ | ENVIRONMENT | {TURN: str(self.turn)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def is_system(self) -> bool:
        return self.part.module == COMPARE

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def is_ready(self) -> bool:
        """Whether the turns may begin, as far as this part is concerned."""
        return self.has_ended or (self.is_system and waiting(self.turn).exists())

    def end(self) -> None:
        """Its children end with it: each part supervises its own."""
        if self.has_ended:
            return
        self._was_ended = True
        self._process.terminate()
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def line(self) -> dict[str, object]:
        """Of `parts.jsonl`. Also copies what it brings."""
        for file, name in self.part.brings.items():
            if (self._folder / file).exists():
                shutil.copy(self._folder / file, self._output / name)
        seconds = time.monotonic() - self._began_s
        logs = sorted(self._folder.rglob("*.log"), key=lambda log: log.stat().st_mtime)[-NEWEST_LOGS:]
        last = [line for log in logs for line in log.read_text(errors="replace").splitlines()[-LAST_LINES:]]
        ended, code = "well", self._process.returncode
        if self._was_ended:
            ended = f"not done after {seconds:.0f} s"
        elif code:
            ended = last_words(self._folder / "part.log") or f"exit code {code}"
        return {
            "part": self.part.name,
            "ended": ended,
            "seconds": round(seconds, 1),
            "last_lines": [] if ended == "well" else last,
        }


def run(wave: Wave, *, device: str, output: Path, limit_s: float) -> Iterator[dict[str, object]]:
    """Each part's line of `parts.jsonl`, as soon as it has ended."""
    began_s = time.monotonic()
    ends_s = began_s + limit_s - ENDING_S

    def wait(until: Callable[[], bool], most_s: float = ends_s) -> None:
        while not until() and time.monotonic() < min(most_s, ends_s):
            time.sleep(LOOK_S)

    with ExitStack() as stack:
        parts = [
            stack.enter_context(Running(part, device=device, output=output, limit_s=limit_s)) for part in wave.parts
        ]
        wait(lambda: all(part.is_ready for part in parts), began_s + SLOWER[device] * START_S)
        for part in sorted(parts, key=lambda part: part.is_system):
            if part.is_system:
                part.turn.touch()
                wait(lambda: part.has_ended)  # noqa: B023 (it is called at once)
            part.end()
            yield part.line()


def about(device: str) -> dict[str, object]:
    """Hardware, versions, commit."""
    gpu = (
        subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.strip() if device == "cuda" else ""
    )
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return {"part": "about", "device": gpu or device, "date": date, "commit": commit.stdout.strip()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, default=Path("outputs", "gpu_day", "results"))
    parser.add_argument("--minutes", type=float, default=12.0, help="for all waves together")
    parser.add_argument("--waves", nargs="+", type=int, choices=range(1, len(WAVES) + 1), help="these alone")
    options = parser.parse_args()
    exit_on_signals()
    output = options.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 60 * options.minutes
    with (output / "parts.jsonl").open("a", encoding="utf-8") as lines:

        def tell(line: dict[str, object]) -> None:
            print(json.dumps({key: value for key, value in line.items() if key != "last_lines"}), flush=True)
            lines.write(json.dumps(line) + "\n")
            lines.flush()

        tell(about(options.device))
        for number, wave in enumerate(WAVES, start=1):
            if number not in (options.waves or [number]):
                continue
            left_s = ends - time.monotonic()
            if left_s < 2 * ENDING_S:
                tell({"part": f"wave {number}", "ended": "not begun: no time was left"})
                continue
            limit_s = min(left_s, SLOWER[options.device] * wave.limit_s)
            for line in run(wave, device=options.device, output=output, limit_s=limit_s):
                tell(line)


if __name__ == "__main__":
    main()
