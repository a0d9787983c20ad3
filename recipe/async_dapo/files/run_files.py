"""Files of a run's folder, `async_dapo.report_dir`: written while it trains, read by its report and by the planner."""

from pathlib import Path

RUN_FILE = "run.json"  # what was run
STEPS_FILE = "steps.jsonl"  # metrics, a line a step
LENGTHS_FILE = "lengths.jsonl"  # of responses, a line a group
RESPONSES_FILE = "responses.jsonl"  # a few of every step
SAMPLES_FILE = "timeline.jsonl"  # engines over time, a line a step
TIMELINE_FILE = "timeline.json"  # the same for Perfetto
REPORT_FILE = "report.html"


def set_aside(path: Path) -> None:
    """Keep a file that would be overwritten, unless it is empty: `train.log` becomes `train.1.log`, or the next."""
    if path.exists() and path.stat().st_size:
        path.rename(_numbered(path, max(_numbers(path), default=0) + 1))


def last_set_aside(path: Path) -> Path | None:
    """The newest of the files that `set_aside` has made of this one."""
    return _numbered(path, max(numbers)) if (numbers := _numbers(path)) else None


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def _numbers(path: Path) -> list[int]:
    found = (one.name[len(path.stem) + 1 : len(one.name) - len(path.suffix)] for one in path.parent.glob("*"))
    return [int(number) for number in found if number.isdecimal() and _numbered(path, int(number)).exists()]
