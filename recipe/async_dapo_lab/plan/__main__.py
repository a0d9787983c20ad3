"""Command line: `python -m recipe.async_dapo_lab.plan [scenario.yaml] [--input value ...]`."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from ...async_dapo.config.values import ConfigError, RolloutStrategy
from ...async_dapo.core.stop_rules import StopRuleName
from .candidates import Candidate, baselines, fitting, natural_concurrency, recipe_candidates
from .from_run import inputs_of_run
from .inputs import Inputs
from .lengths import cut_below
from .recommend import at_equal_share, recommend
from .report import as_json, describe, in_words, table
from .scenario import Scenario
from .sweep import Row, sweep

stdout = Console()
stderr = Console(stderr=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, and print. Returns the exit status: 2 for bad input."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except ConfigError as error:
        _say(f"error: {error}", to=stderr)
        return 2
    return 0


def _run(options: argparse.Namespace) -> None:
    given = {name: value for name in Inputs.described() if (value := getattr(options, name)) is not None}
    recorded = {} if options.from_run is None else inputs_of_run(options.from_run)
    inputs = Inputs.load(options.scenario, given, recorded=recorded)
    scenario = inputs.scenario()
    _check_outputs(options)
    _say(describe(scenario))
    if cut := cut_below(scenario.lengths, scenario.max_response_length):
        _say(cut)
    if scenario.measured is not None:
        _say(f"calibrated on {inputs.calibrate}: {scenario.measured}")
    candidates = recipe_candidates(
        scenario,
        strategies=_strategies(inputs),
        stop_rules=inputs.stop_rules or list(StopRuleName),
        concurrency=inputs.concurrency or [],
    )
    if not candidates:
        raise ConfigError("stop_rules", "drain", "only goes with strategies=discard; add either")
    fit = fitting(scenario, baselines(scenario) + candidates)
    for note in fit.notes:
        _say(note)
    rows = _simulated(fit.candidates, scenario, inputs, jobs=options.jobs)
    advice = recommend(
        rows,
        max_length_bias=inputs.max_length_bias,
        max_off_policy=inputs.max_off_policy,
        kv_room=natural_concurrency(scenario),
        trainer_overrides=fit.overrides,
    )
    _say(f"\n{table(rows, advice, everything=options.all)}")
    _say(f"\n{in_words(advice, inputs)}")
    if options.json is not None:
        Path(options.json).write_text(as_json(inputs, scenario, rows, advice) + "\n")


def _strategies(inputs: Inputs) -> list[RolloutStrategy]:
    """Those that were asked for, or all that training takes."""
    if inputs.strategies or inputs.can_keep_kv:
        return inputs.strategies or list(RolloutStrategy)
    stale_kv = RolloutStrategy.PARTIAL_STALE_KV
    _say(f"left out: {stale_kv}: with kv_cache_dtype={inputs.kv_cache_dtype} training refuses it")
    return [one for one in RolloutStrategy if one is not stale_kv]


def _simulated(candidates: list[Candidate], scenario: Scenario, inputs: Inputs, *, jobs: int) -> list[Row]:
    """Rows in the order of the candidates, then what is compared on equal terms."""
    simulate = partial(sweep, scenario, steps=inputs.steps, warmup=inputs.warmup, jobs=jobs)
    with Progress(console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("simulating", total=len(candidates))
        began_s = time.perf_counter()

        def told() -> None:
            """A bar on a terminal, else a line for each row."""
            bar.advance(task)
            if not stderr.is_terminal:
                done, total = bar.tasks[0].completed, bar.tasks[0].total or 0
                _say(f"simulated {done:.0f} of {total:.0f}, {time.perf_counter() - began_s:.0f} s", to=stderr)

        rows = simulate(candidates, on_row=told)
        equal = at_equal_share(rows)
        bar.update(task, total=len(candidates) + len(equal))
        return rows + simulate(equal, on_row=told, first=rows[0])


def _check_outputs(options: argparse.Namespace) -> None:
    path = options.json
    if path is not None and (Path(path).is_dir() or not Path(path).absolute().parent.is_dir()):
        raise ConfigError("json", path, "must be a file in a folder that exists")
    if options.jobs < 1:
        raise ConfigError("jobs", options.jobs, "must be >= 1")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m recipe.async_dapo_lab.plan",
        description="Simulates training steps with the recipe's own scheduler, and says which options to run.",
    )
    parser.add_argument("scenario", nargs="?", help="YAML file with any of the inputs below")
    parser.add_argument(
        "--from-run", metavar="DIR", help="take sizes, lengths, valid share and speeds from the record of a run"
    )
    parser.add_argument("--json", metavar="FILE", help="write every measure of every row")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="COUNT", help="processes (default: all cores)"
    )
    parser.add_argument("--all", action="store_true", help="show slow rows, too")
    group = parser.add_argument_group("inputs, in the YAML file under the same names")
    for name, (default, about) in Inputs.described().items():
        words = f"{about} (default: {'null' if default is None else default})"
        group.add_argument(f"--{name.replace('_', '-')}", dest=name, metavar="VALUE", help=words.replace("%", "%%"))
    return parser


def _say(text: str, *, to: Console | None = None) -> None:
    (to or stdout).print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
