"""Command line: `python -m recipe.async_dapo_lab.plan [--input value ...]`."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console

from ...async_dapo.config.values import ConfigError, RolloutStrategy
from .candidates import Candidate, baselines, recipe_candidates
from .fit import MODES, Fit, assumed_in_words, assumptions, fit, promise
from .inputs import Inputs
from .lengths import cut_below
from .measures import StepMeasure
from .recommend import at_equal_share, recommend
from .record import read_record
from .report import as_json, describe, in_words, seconds, table
from .scenario import Scenario
from .sweep import Row, expected_s, sweep
from .systems import VERL_COLOCATE_ASYNC, VERL_SYNC

stdout = Console()
stderr = Console(stderr=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, and print. Returns the exit status: 2 for bad input."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except ConfigError as error:
        key, value, remedy = error.args
        _say(f"error: {_flag(key) if hasattr(options, key) else key}={value}: {remedy}", to=stderr)
        return 2
    return 0


def _run(options: argparse.Namespace) -> None:
    given = {name: value for name in Inputs.described() if (value := getattr(options, name)) is not None}
    _check_outputs(options)
    fitted = _fitted(options, given)
    inputs = Inputs.load(given) if fitted is None else fitted.inputs
    scenario = inputs.scenario()
    assumed = assumptions(given, {}) if fitted is None else fitted.assumed
    said = (describe(scenario), "" if fitted is None else str(fitted), assumed_in_words(assumed))
    _say("\n".join(filter(None, said)))
    if cut := cut_below(scenario.lengths, scenario.max_response_length):
        _say(cut)
    if scenario.measured is not None:
        _say(f"calibrated on {inputs.calibrate}: {scenario.measured}")
    candidates = baselines(scenario) + recipe_candidates(scenario, strategies=_strategies(inputs))
    rows = _simulated(candidates, scenario, inputs, jobs=options.jobs)
    advice = recommend(rows)
    _say(f"\n{table(rows, advice)}")
    _say(f"\n{in_words(advice)}")
    promised = None if fitted is None else promise(fitted, given, rows)
    if promised is not None:
        _say(f"\n{promised}")
    if options.json is not None:
        Path(options.json).write_text(as_json(inputs, scenario, rows, advice, assumed, promised) + "\n")


def _fitted(options: argparse.Namespace, given: dict[str, Any]) -> Fit | None:
    """Engines and job of the run that a record is of."""
    if options.record is not None:
        strategies = Inputs.load(given).strategies
        if strategies and RolloutStrategy.PARTIAL not in strategies:
            remedy = "with --record they must include partial, the default that is compared with the recorded step"
            raise ConfigError("strategies", options.strategies, remedy)
        return fit(read_record(options.record), given, options.recorded_mode)
    if options.recorded_mode is not None:
        raise ConfigError("recorded_mode", options.recorded_mode, "is the mode of a record; give --record, too")
    return None


def _strategies(inputs: Inputs) -> list[RolloutStrategy]:
    """Those that were asked for, as far as a training takes them.

    Raises:
        ConfigError: where it takes none of them.
    """
    asked, stale_kv = inputs.strategies or list(RolloutStrategy), RolloutStrategy.PARTIAL_STALE_KV
    why = inputs.why_no_old_kv
    if why is None or stale_kv not in asked:
        return asked
    if asked == [stale_kv]:
        raise ConfigError("strategies", stale_kv, f"{why}; take partial")
    _say(f"left out: {stale_kv}: {why}")
    return [one for one in asked if one is not stale_kv]


def _simulated(candidates: list[Candidate], scenario: Scenario, inputs: Inputs, *, jobs: int) -> list[Row]:
    """Rows in the order of the candidates, then what is compared on equal terms."""
    sizes: dict[str, Any] = {"steps": inputs.steps, "warmup": inputs.warmup, "jobs": jobs}
    expected = expected_s(scenario, candidates, **sizes)
    takes = f"{expected:.0f} s" if expected < 90 else f"{expected / 60:.0f} min"
    _say(
        f"{len(candidates)} rows take about {takes} on {jobs} free core{'s' * (jobs > 1)}; a first answer comes before"
    )
    simulate: Callable[..., list[Row]] = partial(sweep, scenario, is_urgent=_is_of_first_answer, **sizes)
    done, began_s = count(1), time.perf_counter()
    total = len(candidates)
    of_first: dict[str, StepMeasure] = {}
    asked = [candidate for candidate in candidates if _is_of_first_answer(candidate)]

    def told(candidate: Candidate, mean: StepMeasure) -> None:
        number, passed_s = next(done), time.perf_counter() - began_s
        left = f", about {passed_s / number * (total - number):.0f} s left" if number < total else ""
        _say(f"simulated {number} of {total} rows, {passed_s:.0f} s{left}", to=stderr)
        if candidate in asked and candidate.system.name not in of_first:
            of_first[candidate.system.name] = mean
            if len(of_first) == len(asked) > 1:
                _say(_first_answer(of_first))

    rows = simulate(candidates, on_row=told)
    equal = at_equal_share(rows)
    total += len(equal)
    return rows + simulate(equal, on_row=told, first=rows[0])


def _is_of_first_answer(candidate: Candidate) -> bool:
    return candidate.is_default or candidate.system.name in (VERL_SYNC, VERL_COLOCATE_ASYNC)


def _first_answer(means: Mapping[str, StepMeasure]) -> str:
    steps = ", ".join(f"{name} {seconds(mean.step_s)} s" for name, mean in sorted(means.items()))
    return f"first answer, seconds of a step: {steps}. These rows are final; another one may still be faster"


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
    parser.add_argument("--json", type=os.path.expanduser, metavar="FILE", help="write every measure of every row")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="COUNT", help="processes (default: all cores)"
    )
    parser.add_argument(
        "--record",
        type=os.path.expanduser,
        metavar="FILE",
        help="metrics of a run to plan from: verl's file logger, this recipe's steps.jsonl, wandb's history or CSV, a "
        "folder of TensorBoard's events; the engines are fitted so that its step comes out",
    )
    parser.add_argument(
        "--recorded-mode", metavar="MODE", help=f"that the record is of: {', '.join(MODES)} (default: the record tells)"
    )
    group = parser.add_argument_group("inputs")
    for name, (default, about) in Inputs.described().items():
        words = f"{about} (default: {'null' if default is None else default})"
        group.add_argument(_flag(name), dest=name, metavar="VALUE", help=words.replace("%", "%%"))
    return parser


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _say(text: str, *, to: Console | None = None) -> None:
    (to or stdout).print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
