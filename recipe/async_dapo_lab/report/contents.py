"""Which charts a report has: of one run, and of several side by side."""

from collections.abc import Iterator, Sequence

from ...async_dapo.record import keys
from .charts import Chart, Series
from .run import Point, Run, phases


def charts_of(run: Run, prefix: str) -> Iterator[Chart]:
    """Those of one run.

    Args:
        prefix: begins the charts' names, which are unique in a page.
    """
    for chart in (*_speed(run), *_data(run), *_learning(run)):
        if chart.has_data:
            yield Chart(**{name: getattr(chart, name) for name in Chart.__slots__} | {"name": f"{prefix}-{chart.name}"})


def comparison(runs: Sequence[Run]) -> Iterator[Chart]:
    """Several runs in each chart."""
    for name, title, unit, key in (
        ("seconds", "Seconds of a step", "s", keys.STEP_S),
        ("idle", "Empty places in the engines", "share", keys.IDLE_RATIO),
        ("waste", "Thrown-away tokens", "share", keys.WASTE_RATIO),
        ("off-policy", "Off-policy tokens", "share", keys.OFF_POLICY),
        ("reward", "Reward in the batch", "mean", keys.REWARD),
    ):
        series = [Series(name=run.name, points=run.series(key)) for run in runs]
        yield Chart(name=f"all-{name}", title=title, unit=unit, series=series, note="each run in its colour")
    yield Chart(
        name="all-accuracy",
        title="Accuracy over steps",
        unit="accuracy",
        series=[Series(name=run.name, points=run.accuracy()) for run in runs],
        note="the same learning takes the same number of steps",
    )
    yield Chart(
        name="all-accuracy-time",
        title="Accuracy over wall time",
        unit="accuracy",
        x_label="hours",
        series=[Series(name=run.name, points=run.accuracy_over_time()) for run in runs],
        note="what faster steps are for",
    )


def _speed(run: Run) -> Iterator[Chart]:
    parts: dict[str, list[Point]] = {}
    for step in run.steps:
        for name, spent_s in phases(run.by_step[step]):
            parts.setdefault(name, []).append((step, spent_s))
    used = {name: points for name, points in parts.items() if any(spent_s for _, spent_s in points)}
    yield Chart(
        name="step",
        title="Where a step's time goes",
        unit="s",
        is_stacked=True,
        series=[Series(name=name, points=points) for name, points in used.items()],
        note="the bars add up to the step",
    )
    yield _one(
        run, "idle", "Empty places in the engines", "share", keys.IDLE_RATIO, "of the most requests at once", 0.5
    )
    tokens = {
        "trained": keys.TOKENS_TRAINED,
        "filtered": keys.TOKENS_FILTERED,
        "screened out": keys.TOKENS_SCREENED,
        "thrown away": keys.TOKENS_DISCARDED,
    }
    yield Chart(
        name="waste",
        title="Generated tokens",
        unit="tokens",
        is_stacked=True,
        series=[Series(name=name, points=run.series(key)) for name, key in tokens.items() if run.total(key)],
        note="filtered and screened-out groups carry no gradient; thrown-away tokens are waste",
    )
    yield _one(run, "stop", "From the stop to idle engines", "s", keys.STOP_LATENCY_S, "waiting for nothing else")


def _data(run: Run) -> Iterator[Chart]:
    yield Chart(
        name="filter",
        title="Filter",
        unit="share",
        series=[
            Series(name="filtered", points=run.series(keys.REJECTED_RATIO)),
            Series(name="expected valid", points=run.series(keys.VALID_SHARE)),
        ],
        note="groups whose answers are all right or all wrong teach nothing",
        marks=(0.7,),
    )
    yield Chart(
        name="staleness",
        title="Staleness of the batch's tokens",
        unit="share",
        is_stacked=True,
        series=[
            Series(name=bucket.replace("_plus", "+"), points=run.series(keys.STALENESS_TOKENS + bucket))
            for bucket in keys.STALENESS_BUCKETS
        ],
        note="policy versions between a token and the step that trains it",
    )
    yield _one(run, "age", "Rounds a trajectory was carried over", "rounds", keys.AGE_MAX, "most in the batch")
    yield Chart(
        name="lengths",
        title="Response lengths, trained and dispatched",
        unit="tokens",
        series=[
            Series(name="trained", points=run.series(keys.LENGTH_TRAINED)),
            Series(name="dispatched", points=run.series(keys.LENGTH_DISPATCHED)),
        ],
        note="one line: no length bias; trained below dispatched: short answers are preferred",
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
    yield Chart(
        name="importance",
        title="Importance sampling: effective sample size",
        unit="share",
        series=[Series(name="all tokens", points=run.series(keys.ESS_RATIO))],
        note="1: old tokens count like new ones",
        marks=(0.8,),
    )
    yield _one(run, "kl", "Distance of the old policies", "nats", keys.K3_KL, "k3 estimate of KL(mu || pi_prox)")
    yield _one(run, "reward", "Reward in the batch", "mean", keys.REWARD, "of the groups that are trained")
    yield Chart(
        name="accuracy",
        title="Accuracy over steps",
        unit="accuracy",
        series=[Series(name=run.accuracy_name(), points=run.accuracy())],
        note="step 0 is before training",
    )
    yield Chart(
        name="accuracy-time",
        title="Accuracy over wall time",
        unit="accuracy",
        x_label="hours",
        series=[Series(name=run.accuracy_name(), points=run.accuracy_over_time())],
        note="since the first validation",
    )


def _one(run: Run, name: str, title: str, unit: str, key: str, note: str, mark: float | None = None) -> Chart:
    marks = () if mark is None else (mark,)
    return Chart(
        name=name, title=title, unit=unit, series=[Series(name=title, points=run.series(key))], note=note, marks=marks
    )
