"""Which charts a report has: of one run, and of several side by side."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...async_dapo.record import keys
from .charts import Chart, Series
from .run import Point, Run, phases

Lines = Iterable[tuple[str, Sequence[Point]]]


def charts_of(run: Run, prefix: str) -> Iterator[Chart]:
    """Those of one run.

    Args:
        prefix: begins the charts' names, which are unique in a page.
    """
    for chart in (*_speed(run), *_data(run), *_learning(run)):
        if chart.has_data:
            yield replace(chart, name=f"{prefix}-{chart.name}")


def comparison(runs: Sequence[Run]) -> Iterator[Chart]:
    """Several runs in each chart."""
    note = "each run in its colour"
    for name, title, unit, key in (
        ("seconds", "Seconds of a step", "s", keys.STEP_S),
        ("idle", "Empty capacity of the engines", "share", keys.IDLE_RATIO),
        ("waste", "Thrown-away tokens", "share", keys.WASTE_RATIO),
        ("off-policy", "Off-policy tokens", "share", keys.OFF_POLICY),
        ("reward", "Reward in the batch", "mean", keys.REWARD),
    ):
        yield _chart(f"all-{name}", title, unit, [(run.name, run.series(key)) for run in runs], note)
    equal = "the same learning takes the same number of steps"
    yield _accuracy([(run.name, run.accuracy()) for run in runs], equal, "all-")
    in_time = [(run.name, run.accuracy_over_time()) for run in runs]
    yield _accuracy_in_time(in_time, "what faster steps are for", "all-")


def _speed(run: Run) -> Iterator[Chart]:
    parts: dict[str, list[Point]] = {}
    for step in run.steps:
        for name, spent_s in phases(run.by_step[step]):
            parts.setdefault(name, []).append((step, spent_s))
    used = {name: points for name, points in parts.items() if any(spent_s for _, spent_s in points)}
    yield _chart("step", "Where a step's time goes", "s", used.items(), "the bars add up to the step", is_stacked=True)
    idle = "Empty capacity of the engines"
    yield _one(run, "idle", idle, "share", keys.IDLE_RATIO, "of the most requests at once", marks=(0.5,))
    tokens = {
        "trained": keys.TOKENS_TRAINED,
        "filtered": keys.TOKENS_FILTERED,
        "thrown away": keys.TOKENS_DISCARDED,
    }
    yield _chart(
        "waste",
        "Generated tokens",
        "tokens",
        [(name, run.series(key)) for name, key in tokens.items() if run.total(key)],
        "filtered groups carry no gradient; thrown-away tokens are waste",
        is_stacked=True,
    )
    yield _one(run, "stop", "From the stop to idle engines", "s", keys.STOP_LATENCY_S, "waiting for nothing else")


def _data(run: Run) -> Iterator[Chart]:
    yield _chart(
        "filter",
        "Filter",
        "share",
        [("filtered", run.series(keys.REJECTED_RATIO)), ("expected valid", run.series(keys.VALID_SHARE))],
        "groups whose answers are all right or all wrong teach nothing",
        marks=(0.7,),
    )
    yield _chart(
        "staleness",
        "Staleness of the batch's tokens",
        "share",
        [
            (bucket.replace("_plus", "+"), run.series(keys.STALENESS_TOKENS + bucket))
            for bucket in keys.STALENESS_BUCKETS
        ],
        "policy versions between a token and the step that trains it",
        is_stacked=True,
    )
    yield _one(run, "age", "Rounds a trajectory was carried over", "rounds", keys.AGE_MAX, "most in the batch")
    yield _chart(
        "lengths",
        "Response lengths, trained and dispatched",
        "tokens",
        [("trained", run.series(keys.LENGTH_TRAINED)), ("dispatched", run.series(keys.LENGTH_DISPATCHED))],
        "one line: no length bias; trained below dispatched: short answers are preferred",
    )
    if any(turns > 1 for _, turns in run.series(keys.TURNS)):
        yield _one(run, "turns", "Turns of a trajectory", "turns", keys.TURNS, "of those that ended in the step")
        yield _one(run, "turn-tokens", "Tokens of a turn", "tokens", keys.TURN_TOK, "what the model says at a time")
    if run.total(keys.CALLS_S):
        note = "of a trajectory that ended in the step, over all steps it took"
        yield _one(run, "calls", "Seconds in tools", "s", keys.CALLS_S, note)
    if run.total(keys.FAILED_GROUPS):
        yield _one(run, "failed", "Failed groups", "groups", keys.FAILED_GROUPS, "see the causes above")


def _learning(run: Run) -> Iterator[Chart]:
    ess = [("all tokens", run.series(keys.ESS_RATIO))]
    title = "Importance sampling: effective sample size"
    yield _chart("importance", title, "share", ess, "1: old tokens count like new ones", marks=(0.8,))
    yield _one(run, "kl", "Distance of the old policies", "nats", keys.K3_KL, "k3 estimate of KL(mu || pi_prox)")
    yield _one(run, "reward", "Reward in the batch", "mean", keys.REWARD, "of the groups that are trained")
    yield _accuracy([(run.accuracy_name(), run.accuracy())], "step 0 is before training")
    yield _accuracy_in_time([(run.accuracy_name(), run.accuracy_over_time())], "since the first validation")


def _one(run: Run, name: str, title: str, unit: str, key: str, note: str, **more: Any) -> Chart:
    return _chart(name, title, unit, [(title, run.series(key))], note, **more)


def _accuracy(lines: Lines, note: str, prefix: str = "") -> Chart:
    return _chart(f"{prefix}accuracy", "Accuracy over steps", "accuracy", lines, note)


def _accuracy_in_time(lines: Lines, note: str, prefix: str = "") -> Chart:
    return _chart(f"{prefix}accuracy-time", "Accuracy over wall time", "accuracy", lines, note, x_label="hours")


def _chart(name: str, title: str, unit: str, lines: Lines, note: str, **more: Any) -> Chart:
    """
    Args:
        lines: names of series with their points.
        more: further fields of the chart.
    """
    series = [Series(name=of, points=points) for of, points in lines]
    return Chart(name=name, title=title, unit=unit, series=series, note=note, **more)
