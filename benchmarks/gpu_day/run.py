"""A quarter of an hour on one GPU, used well: parts in order of worth, each with a time limit.

python -m benchmarks.gpu_day.run --output "$OUT" --minutes 9

The first part is an engine's life without Ray and a trained step: what fails there would show in a training only as a
hang or as other probabilities. Then come two systems, each alone, whose steps are compared; then parts that only pass
or fail, two at a time. What each part finds is written as it comes: `parts.jsonl` (a line a part: how it ended,
seconds, least free memory, last words; a line for what it has left), `runs.csv`, `gpu_check_*.json`,
`calibration.jsonl`. A part that hangs is ended at its limit with all that it has started, and the next one runs; one
that the minutes leave no time for is named, and `--parts` runs it later. `--device cpu` rehearses with small sizes;
what needs a GPU is skipped.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.support.runs_file import RunsFile, claim, commit
from recipe.async_dapo_lab.command_line import path
from recipe.async_dapo_lab.gpu_check.supervised import run_supervised
from recipe.async_dapo_lab.gpu_check.watch import LeastFree, Leftovers
from recipe.async_dapo_lab.quickstart.supervision import exit_on_signals

ENDING_S = 20.0  # in which a part ends by itself, its children and its results included
LEAST_S = 75.0  # no part is begun with less: none starts up sooner
SLOWER = {"cuda": 1.0, "cpu": 4.0}
NEWEST_LOGS, FIRST_LINES, LAST_LINES = 4, 50, 150  # that a part which failed brings back: the end is the shutdown's
SAID_LINES = 15  # of one that ended well
DAY_MARK = "ASYNC_DAPO_GPU_DAY"  # a variable of all that a part starts
DAY_S = 900.0  # of the device, starts and idle time included
SETUP_S = 150.0  # start of the machine, three copies, unpacking: estimated, but for the copies
RESERVE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One command. It gets the device, a folder and a time limit.

    Args:
        planned_s: an estimate, for the day's plan.
        is_beside: runs at the same time as the part before it.
        brings: files of its folder that are results, and their names there.
    """

    name: str
    planned_s: float
    limit_s: float
    command: tuple[str, ...]
    is_beside: bool = False
    brings: dict[str, str] = field(default_factory=dict)


def check(
    name: str,
    *arguments: str,
    planned_s: float,
    limit_s: float,
    is_beside: bool = False,
    also: Mapping[str, str] | None = None,
) -> Part:
    return Part(
        name=name,
        planned_s=planned_s,
        limit_s=limit_s,
        command=("recipe.async_dapo_lab.gpu_check", *arguments),
        is_beside=is_beside,
        brings={"gpu_check.json": f"gpu_check_{name}.json", **(also or {})},
    )


def compare(system: str) -> Part:
    return Part(name=system, planned_s=105.0, limit_s=170.0, command=("benchmarks.gpu_day.compare", system))


ONLY_TRAIN = ("--only", "2", "--cases")
FULL = ("full", "host_kv", "host_kv_async", "mtp")
PARTS = (
    check(
        "life", "--minute", "life", "step", planned_s=135.0, limit_s=230.0, also={"minute/life/minute.log": "life.log"}
    ),
    compare("partial"),
    compare("verl colocate_async, 0.05 s poll"),
    check("pressure", "--beside", "--minute", *FULL, planned_s=150.0, limit_s=240.0),
    check(
        "stale", "--beside", *ONLY_TRAIN, "partial_stale_kv, host memory", planned_s=90.0, limit_s=160.0, is_beside=True
    ),
    check("fp8", "--minute", "fp8", planned_s=45.0, limit_s=90.0),
    compare("partial_stale_kv, host memory"),
    # What follows is for a second quarter of an hour, or for minutes that are left.
    compare("verl colocate_async, 0.05 s poll, no pass"),
    check("training", "--beside", *ONLY_TRAIN, "partial", "FP8 cache", planned_s=180.0, limit_s=300.0),
    check("families", "--beside", *ONLY_TRAIN, "experts", "images", planned_s=180.0, limit_s=300.0, is_beside=True),
    check("speed", "--only", "3", planned_s=90.0, limit_s=150.0, also={"speed/speed.jsonl": "calibration.jsonl"}),
    check("compiled", *ONLY_TRAIN, "partial, compiled", planned_s=150.0, limit_s=240.0),
)
FIRST_DAY = 7  # parts


def slots(parts: Iterable[Part]) -> Iterator[tuple[Part, ...]]:
    """Those that run at the same time."""
    slot: tuple[Part, ...] = ()
    for part in parts:
        if slot and not part.is_beside:
            yield slot
            slot = ()
        slot = (*slot, part)
    if slot:
        yield slot


def environment(work: Path) -> dict[str, str]:
    return os.environ | {
        "HOME": str(work),  # of the caches of kernels and models; there may be none that can be written to
        "PYTHONDONTWRITEBYTECODE": "",  # every process would compile what it imports
        "PYTHONUNBUFFERED": "1",
        "VLLM_HOST_IP": "127.0.0.1",  # without a network no address is found out
        "VLLM_LOGGING_LEVEL": "INFO",  # verl's WARN hides runner, backend, graphs, and what a sleep has freed
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # FlashInfer is not packed, and vLLM 0.24.0 imports it for its sampler
    }


def _ends_of(lines: list[str]) -> list[str]:
    return lines if len(lines) <= FIRST_LINES + LAST_LINES else [*lines[:FIRST_LINES], "...", *lines[-LAST_LINES:]]


def run(part: Part, *, device: str, output: Path, limit_s: float, mark: str) -> dict[str, Any]:
    """Its line of `parts.jsonl`. Results are in `output` alone, all else beside it."""
    work = output.with_name("work")
    folder = work / RunsFile.folder_name({"part": part.name})
    folder.mkdir(parents=True, exist_ok=True)
    for file, name in part.brings.items():
        for old in (folder / file, output / name):
            old.unlink(missing_ok=True)  # of an earlier run
    module, *arguments = part.command
    places = ("--output", str(folder if part.brings else output), "--timeout-s", str(limit_s - 2 * ENDING_S))
    began_s, log, free = time.monotonic(), folder / "part.log", LeastFree(device)
    ended = run_supervised(
        [sys.executable, "-m", module, *arguments, "--device", device, *places],
        environment=environment(work) | {DAY_MARK: mark},
        log=log,
        timeout_s=limit_s - ENDING_S,
        on_watch=free.look,
    )
    for file, name in part.brings.items():
        if (folder / file).exists():
            shutil.copy(folder / file, output / name)
    logs = sorted(folder.rglob("*.log"), key=lambda log: log.stat().st_mtime)[-NEWEST_LOGS:] if ended else [log]
    last = [line for log in logs for line in _ends_of(log.read_text(errors="replace").splitlines())]
    return {
        "part": part.name,
        "ended": ended or "well",
        "seconds": round(time.monotonic() - began_s, 1),
        "least_free_gb": {name: round(gb, 1) for name, gb in free.gb.items()},
        "last_lines": last if ended else last[-SAID_LINES:],
    }


def run_beside(parts: tuple[Part, ...], *, device: str, output: Path, minutes: float) -> None:
    """Each in a command of its own, as what a process ends is everything that has been started below it."""
    numbers = [str(PARTS.index(part) + 1) for part in parts]
    places = ("--device", device, "--output", str(output), "--minutes", str(minutes), "--no-about")
    commands = [[sys.executable, "-m", __spec__.name, *places, "--parts", number] for number in numbers]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            started.append(subprocess.Popen(command))
        for process in started:
            process.wait()
    finally:
        for process in started:
            process.terminate()  # which ends what it has started
        for process in started:
            process.wait()


class Told:
    """`parts.jsonl`, to which several processes add."""

    def __init__(self, output: Path) -> None:
        self._file = output / "parts.jsonl"

    def add(self, **line: Any) -> None:
        last = line.pop("last_lines", [])
        print(*last, json.dumps(line), sep="\n", flush=True)
        with claim(self._file), self._file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line | {"last_lines": last}) + "\n")


def run_slot(slot: tuple[Part, ...], *, device: str, output: Path, ends_s: float) -> None:
    """Its parts at the same time; what they leave behind is told in a line of its own.

    Args:
        ends_s: of the monotonic clock; until then all parts have to be done.
    """
    told, left_s = Told(output), ends_s - time.monotonic()
    limits_s = {part.name: min(left_s, SLOWER[device] * part.limit_s) for part in slot}
    if left_s < LEAST_S or min(limits_s.values()) < LEAST_S:
        for part in slot:
            told.add(part=part.name, ended="not begun: too little time was left")
    elif len(slot) > 1:
        run_beside(slot, device=device, output=output, minutes=left_s / 60)
    else:
        [part] = slot
        mark = f"{output} {part.name} {os.getpid()}"
        left = Leftovers(device, mark=mark, variable=DAY_MARK)
        told.add(**run(part, device=device, output=output, limit_s=limits_s[part.name], mark=mark))
        told.add(left_by=part.name, left=left.after_grace())


def about(device: str) -> dict[str, Any]:
    gpu = ["nvidia-smi", "-L"] if device == "cuda" else ["echo", "cpu"]
    try:
        said = subprocess.run(gpu, capture_output=True, text=True).stdout.strip()
    except OSError as error:
        said = str(error)
    return {"part": "about", "device": said, "date": time.strftime("%Y-%m-%d %H:%M"), "commit": commit()}


def main() -> None:
    numbers = range(1, len(PARTS) + 1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=path, default=Path("outputs", "gpu_day", "results"))
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts together")
    parser.add_argument("--parts", nargs="+", type=int, choices=numbers, default=numbers, help="these alone")
    parser.add_argument("--no-about", action="store_true", help="another run of this command has told of the device")
    options = parser.parse_args()
    exit_on_signals()
    output, ends_s = options.output.absolute(), time.monotonic() + 60 * options.minutes
    output.mkdir(parents=True, exist_ok=True)
    if not options.no_about:
        Told(output).add(**about(options.device))
    for slot in slots(PARTS[number - 1] for number in options.parts):
        run_slot(slot, device=options.device, output=output, ends_s=ends_s)


if __name__ == "__main__":
    main()
