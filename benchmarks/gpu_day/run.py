"""A quarter of an hour on one GPU, used well: parts in order of worth, each with a time limit.

python -m benchmarks.gpu_day.run --output "$OUT" --minutes 9

What each part finds is written as it comes: `parts.jsonl` (a line a part: how it ended, seconds, last words),
`runs.csv`, `gpu_check_*.json`, `calibration.jsonl`. A part that hangs is ended at its limit, and the next one runs; a
part that the minutes leave no time for is named. `--device cpu` rehearses all of it with small sizes.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.support.supervised_training import ROOT
from recipe.async_dapo_lab.gpu_check.supervised import run_supervised
from recipe.async_dapo_lab.quickstart.supervision import exit_on_signals

CHECK = "recipe.async_dapo_lab.gpu_check"
COMPARE = "benchmarks.gpu_day.compare"
ENDING_S = 15.0  # in which a part ends by itself, its children and its results included
LIMIT_FACTOR = {"cuda": 1.0, "cpu": 4.0}
NEWEST_LOGS, LAST_LINES = 4, 60  # that a part which failed brings back


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One command."""

    name: str
    limit_s: float
    module: str
    arguments: tuple[str, ...]
    brings: dict[str, str]  # files of its folder that are results, and their names there


def check(theme: int, name: str, limit_s: float, also: Mapping[str, str] = MappingProxyType({})) -> Part:
    files = {"gpu_check.json": f"gpu_check_{name}.json", **also}
    return Part(name=name, limit_s=limit_s, module=CHECK, arguments=("--only", str(theme)), brings=files)


def compare(system: str, limit_s: float, *, model: str = "0.6b", steps: int = 6) -> Part:
    name, options = system if model == "0.6b" else model, ("--model", model, "--steps", str(steps))
    return Part(name=name, limit_s=limit_s, module=COMPARE, arguments=(system, *options), brings={})


PARTS = (
    check(2, "engine", 90.0),
    compare("verl colocate_async, 0.05 s poll", 130.0),
    compare("partial", 130.0),
    check(5, "speed", 90.0, {"speed/speed.jsonl": "calibration.jsonl"}),
    compare("partial_stale_kv", 110.0),
    compare("partial, drafts", 110.0),
    compare("partial", 80.0, model="experts", steps=3),
    check(4, "cheaper_tokens", 60.0),
    check(3, "training", 240.0),
)


def run(part: Part, *, device: str, output: Path, limit_s: float) -> dict[str, object]:
    """Its line of `parts.jsonl`."""
    folder = output.with_name("work") / part.name.replace(" ", "_").replace(",", "")  # results alone are in `output`
    folder.mkdir(parents=True, exist_ok=True)
    places = ["--output", str(output), "--work", str(folder)] if part.module == COMPARE else ["--output", str(folder)]
    options = ["--device", device, *places, "--timeout-s", str(limit_s - ENDING_S)]
    began = time.monotonic()
    ended = run_supervised(
        [sys.executable, "-m", part.module, *part.arguments, *options],
        environment=os.environ | {"PYTHONUNBUFFERED": "1"},
        log=folder / "part.log",
        timeout_s=limit_s,
    )
    seconds = time.monotonic() - began
    for file, name in part.brings.items():
        if (folder / file).exists():
            shutil.copy(folder / file, output / name)
    logs = sorted(folder.rglob("*.log"), key=lambda log: log.stat().st_mtime)[-NEWEST_LOGS:]
    last = (
        [line for log in logs for line in log.read_text(errors="replace").splitlines()[-LAST_LINES:]] if ended else []
    )
    return {"part": part.name, "ended": ended or "well", "seconds": round(seconds, 1), "last_lines": last}


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
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts together")
    parser.add_argument("--parts", nargs="+", choices=[part.name for part in PARTS], help="these alone, in this order")
    options = parser.parse_args()
    exit_on_signals()
    output = options.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 60 * options.minutes
    named = {part.name: part for part in PARTS}
    with (output / "parts.jsonl").open("a", encoding="utf-8") as lines:

        def tell(line: dict[str, object]) -> None:
            print(json.dumps({key: value for key, value in line.items() if key != "last_lines"}), flush=True)
            lines.write(json.dumps(line) + "\n")
            lines.flush()

        tell(about(options.device))
        for name in options.parts or named:
            left_s = ends - time.monotonic()
            if left_s < 2 * ENDING_S:
                tell({"part": name, "ended": "not begun: no time was left"})
                continue
            limit_s = min(left_s, LIMIT_FACTOR[options.device] * named[name].limit_s)
            tell(run(named[name], device=options.device, output=output, limit_s=limit_s))


if __name__ == "__main__":
    main()
