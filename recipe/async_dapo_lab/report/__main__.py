"""`python -m recipe.async_dapo_lab.report RUN_DIR [RUN_DIR ...]`: what runs did, as one HTML page."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..command_line import path
from .run import NoRecord
from .write import write_report


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="report", description=__doc__)
    parser.add_argument(
        "runs",
        type=path,
        nargs="+",
        metavar="RUN_DIR",
        help="folder of a run's record, or a file of verl's file logger",
    )
    parser.add_argument("--output", type=path, metavar="FILE", help="default: report.html in the first folder")
    parser.add_argument(
        "--watch",
        type=float,
        nargs="?",
        const=30.0,
        metavar="SECONDS",
        help="write the page again and again, until Ctrl-C; a browser that shows it renews it [30]",
    )
    parsed = parser.parse_args(arguments)
    if parsed.watch is not None and parsed.watch < 1:
        parser.error(f"--watch={parsed.watch}: must be at least 1")
    if parsed.output is not None and not parsed.output.absolute().parent.is_dir():
        parser.error(f"--output={parsed.output}: must be a file in a folder that exists")
    runs = [folder.resolve() for folder in parsed.runs]
    try:
        sys.stdout.write(f"{write_report(runs, parsed.output, renewed_s=parsed.watch)}\n")
        if parsed.watch is not None:
            _watch(runs, parsed.output, every_s=parsed.watch)
    except NoRecord as error:
        sys.exit(f"async_dapo: {error}; name the folder of a run (async_dapo.report_dir)")


def _watch(runs: Sequence[Path], output: Path | None, *, every_s: float) -> None:
    try:
        while True:
            time.sleep(every_s)
            write_report(runs, output, renewed_s=every_s)
    except KeyboardInterrupt:
        write_report(runs, output)


if __name__ == "__main__":
    main()
