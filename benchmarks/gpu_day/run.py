"""A quarter of an hour on one GPU, used well: parts in order of worth, one after the other, each with a time limit.

python -m benchmarks.gpu_day.run --output "$OUT" --minutes 9

The first part is an engine's life without Ray, a step and a full cache: what fails there would show in a training
only as a hang or as other probabilities. The second trains. What each part finds is written as it comes:
`parts.jsonl` (a line a part: how it ended, seconds, last words), `runs.csv`, `gpu_check_*.json`, `calibration.jsonl`. A
part that hangs is ended at its limit with all that it has started, and the next one runs; one that the minutes leave no
time for is named, and `--parts` runs it later. `--device cpu` rehearses with small sizes; what needs a GPU is told as
skipped.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.support.runs_file import RunsFile, commit
from recipe.async_dapo_lab.gpu_check.supervised import run_supervised
from recipe.async_dapo_lab.quickstart.supervision import exit_on_signals

ENDING_S = 20.0  # in which a part ends by itself, its children and its results included
LEAST_S = 75.0  # no part is begun with less: none starts up sooner
SLOWER = {"cuda": 1.0, "cpu": 4.0}
NEWEST_LOGS, FIRST_LINES, LAST_LINES = 4, 50, 150  # that a part which failed brings back: the end is the shutdown's
SAID_LINES = 15  # of one that ended well


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One command. It gets the device, a folder and a time limit."""

    name: str
    limit_s: float
    command: tuple[str, ...]
    brings: dict[str, str] = field(default_factory=dict)  # files of its folder that are results, and their names there


def check(name: str, *arguments: str, limit_s: float, **also: str) -> Part:
    files = {"gpu_check.json": f"gpu_check_{name}.json", **also}
    return Part(name=name, limit_s=limit_s, command=("recipe.async_dapo_lab.gpu_check", *arguments), brings=files)


def compare(system: str) -> Part:
    return Part(name=system, limit_s=210.0, command=("benchmarks.gpu_day.compare", system))


PARTS = (
    check("minute", "--minute", limit_s=240.0, **{"minute/life.log": "life.log"}),
    check("training", "--only", "2", "--cases", "partial", limit_s=150.0),
    compare("partial"),
    compare("verl colocate_async, 0.05 s poll"),
    compare("partial_stale_kv, host memory"),
    compare("verl colocate_async, 0.05 s poll, no pass"),
    check("smoke", "--only", "2", "--cases", "FP8 cache", "partial_stale_kv, host memory", limit_s=270.0),
    check("speed", "--only", "3", limit_s=150.0, **{"speed/speed.jsonl": "calibration.jsonl"}),
    check("families", "--only", "2", "--cases", "experts", "images", limit_s=300.0),
    check("compiled", "--only", "2", "--cases", "partial, compiled", limit_s=240.0),
)


def environment(work: Path) -> dict[str, str]:
    return os.environ | {
        "HOME": str(work),  # of the caches of kernels and models; there may be none that can be written to
        "PYTHONDONTWRITEBYTECODE": "",  # every process would compile what it imports
        "PYTHONUNBUFFERED": "1",
        "VLLM_HOST_IP": "127.0.0.1",  # without a network no address is found out
        "VLLM_LOGGING_LEVEL": "INFO",  # verl's WARN hides runner, backend, graphs, and what a sleep has freed
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # FlashInfer is not packed, and vLLM 0.24.0 imports it for its sampler
    }


def processes_on_gpu() -> list[str]:
    """What a part has left on the GPU: process, memory."""
    query = ["nvidia-smi", "--query-compute-apps=pid,name,used_memory", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True).stdout.strip().splitlines()


def _ends_of(lines: list[str]) -> list[str]:
    return lines if len(lines) <= FIRST_LINES + LAST_LINES else [*lines[:FIRST_LINES], "...", *lines[-LAST_LINES:]]


def run(part: Part, *, device: str, output: Path, limit_s: float) -> dict[str, Any]:
    """Its line of `parts.jsonl`. Results are in `output` alone, all else beside it."""
    work = output.with_name("work")
    folder = work / RunsFile.folder_name({"part": part.name})
    folder.mkdir(parents=True, exist_ok=True)
    for file, name in part.brings.items():
        for old in (folder / file, output / name):
            old.unlink(missing_ok=True)  # of an earlier run
    module, *arguments = part.command
    places = ("--output", str(folder if part.brings else output), "--timeout-s", str(limit_s - 2 * ENDING_S))
    began_s, log = time.monotonic(), folder / "part.log"
    ended = run_supervised(
        [sys.executable, "-m", module, *arguments, "--device", device, *places],
        environment=environment(work),
        log=log,
        timeout_s=limit_s - ENDING_S,
    )
    for file, name in part.brings.items():
        if (folder / file).exists():
            shutil.copy(folder / file, output / name)
    logs = sorted(folder.rglob("*.log"), key=lambda log: log.stat().st_mtime)[-NEWEST_LOGS:] if ended else [log]
    last = [line for log in logs for line in _ends_of(log.read_text(errors="replace").splitlines())]
    return {
        "left_on_gpu": processes_on_gpu() if device == "cuda" else [],
        "part": part.name,
        "ended": ended or "well",
        "seconds": round(time.monotonic() - began_s, 1),
        "last_lines": last if ended else last[-SAID_LINES:],
    }


def main() -> None:
    numbers = range(1, len(PARTS) + 1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, default=Path("outputs", "gpu_day", "results"))
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts together")
    parser.add_argument("--parts", nargs="+", type=int, choices=numbers, default=numbers, help="these alone")
    options = parser.parse_args()
    exit_on_signals()
    output = options.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 60 * options.minutes
    with (output / "parts.jsonl").open("a", encoding="utf-8") as lines:

        def tell(line: dict[str, Any]) -> None:
            last = line.pop("last_lines", [])
            print(*last, json.dumps(line), sep="\n", flush=True)
            lines.write(json.dumps(line | {"last_lines": last}) + "\n")
            lines.flush()

        gpu = ["nvidia-smi", "-L"] if options.device == "cuda" else ["echo", "cpu"]
        device = subprocess.run(gpu, capture_output=True, text=True).stdout.strip()
        tell({"part": "about", "device": device, "date": time.strftime("%Y-%m-%d %H:%M"), "commit": commit()})
        for part in (PARTS[number - 1] for number in options.parts):
            limit_s = min(ends - time.monotonic(), SLOWER[options.device] * part.limit_s)
            if limit_s < LEAST_S:
                tell({"part": part.name, "ended": "not begun: too little time was left"})
            else:
                tell(run(part, device=options.device, output=output, limit_s=limit_s))


if __name__ == "__main__":
    main()
