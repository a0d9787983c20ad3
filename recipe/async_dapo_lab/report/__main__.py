"""`python -m recipe.async_dapo_lab.report RUN_DIR [RUN_DIR ...]`: what runs did, as one HTML page."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .run import NoRecord
from .write import write_report


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="report", description=__doc__)
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN_DIR", help="folder with steps.jsonl or metrics.jsonl"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: report.html in the first folder")
    parsed = parser.parse_args(arguments)
    try:
        path = write_report([folder.resolve() for folder in parsed.runs], parsed.output)
    except NoRecord as error:
        sys.exit(f"async_dapo: {error}; name the folder of a run (async_dapo.report_dir)")
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
