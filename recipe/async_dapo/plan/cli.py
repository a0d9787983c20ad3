"""Command line: `python -m recipe.async_dapo.plan [scenario.yaml] [--input value ...]`."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from ..config import ConfigError, RolloutStrategy
from ..core.stop_rules import StopRuleName
from .candidates import baselines, default_concurrency, recipe_candidates
from .figure import draw
from .inputs import Inputs
from .recommend import recommend
from .report import advice, as_json, describe, table
from .sweep import sweep


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, and print. Returns the exit status: 2 for bad input."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(options: argparse.Namespace) -> None:
    given = {name: value for name in _input_names() if (value := getattr(options, name)) is not None}
    inputs = Inputs.load(options.scenario, given)
    scenario = inputs.scenario()
    if options.figure is not None and Path(options.figure).suffix not in (".png", ".html"):
        raise ConfigError("figure", options.figure, "must end in .png or .html")
    print(describe(scenario))
    if scenario.measured is not None:
        print(f"calibrated on {inputs.calibrate}: {scenario.measured}")
    candidates = [] if options.no_baselines else baselines(scenario)
    candidates += recipe_candidates(
        scenario,
        strategies=inputs.strategies or list(RolloutStrategy),
        stop_rules=inputs.stop_rules or list(StopRuleName),
        concurrency=default_concurrency(scenario) if inputs.concurrency is None else inputs.concurrency,
    )
    done = iter(range(1, len(candidates) + 1))
    rows = sweep(
        scenario,
        candidates,
        steps=inputs.steps,
        warmup=inputs.warmup,
        jobs=options.jobs,
        on_row=lambda candidate: _progress(f"{next(done)}/{len(candidates)} {candidate.system.name}"),
    )
    _progress("")
    chosen = recommend(rows, max_length_bias=inputs.max_length_bias, max_off_policy=inputs.max_off_policy)
    print(f"\n{table(rows, chosen)}\n\n{advice(chosen, inputs)}")
    if options.json is not None:
        Path(options.json).write_text(as_json(inputs, scenario, rows, chosen) + "\n")
    if options.figure is not None:
        draw(options.figure, rows, None if chosen is None else chosen.row, describe(scenario))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m recipe.async_dapo.plan",
        description="Simulates training steps with the recipe's own scheduler, and says which options to run.",
    )
    parser.add_argument("scenario", nargs="?", help="YAML file with any of the inputs below")
    parser.add_argument("--json", metavar="FILE", help="write every measure of every row")
    parser.add_argument("--figure", metavar="FILE", help="write one figure, .png or .html")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes [count] (default: all cores)")
    parser.add_argument("--no-baselines", action="store_true", help="only this recipe's own options")
    group = parser.add_argument_group("inputs, in the YAML file under the same names")
    for field in fields(Inputs):
        default = "null" if field.default is None else field.default
        group.add_argument(f"--{field.name.replace('_', '-')}", dest=field.name, metavar="VALUE",
                           help=f"{field.metadata['about']} (default: {default})".replace("%", "%%"))  # fmt: skip
    return parser


def _input_names() -> list[str]:
    return [field.name for field in fields(Inputs)]


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
