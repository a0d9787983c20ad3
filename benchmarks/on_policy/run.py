"""The systems, the two ideas as variants of a simulated run, and the table. Everything is simulated."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.defaults.draw import geometric_mean
from benchmarks.defaults.settings import Setting
from recipe.async_dapo.core.over_sampling import OverSampling
from recipe.async_dapo.core.pool import Dispatch
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo_lab.plan.measures import StepMeasure
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import System, recipe, verl_sync
from recipe.async_dapo_lab.plan.workload import ANSWERS

FOLDER = Path(__file__).parents[2] / "assets" / "on_policy"
CLUSTERS = ("1 x H100, B=32", "2 x H200, B=32", "8 x H200, B=64", "8 x H100, B=128", "16 x H100, B=64")
WARMUP, TRAJECTORIES, FEWEST_STEPS = 8, 8_000, 16
FIFO = recipe("discard fifo", rollout_strategy="discard", stop_rule="fifo")
HISTORY = replace(
    FIFO.with_overrides({"async_dapo.selection.history_file": "history.json"}), name="discard fifo, history"
)
OTHERS = (
    recipe("discard drain", rollout_strategy="discard", stop_rule="drain"),
    recipe("consistent", rollout_strategy="consistent", stop_rule="first_completed"),
)
STARTED = (1.1, 1.25, 1.5)
NEVER = 1 << 40  # a step that does not come

Start = Callable[[Scenario], TrainingRun]


class LongestFirst(TrainingRun):
    """Of the waiting groups those that waited longest start first, and of those the ones expected to be longest."""

    def _open_round(self) -> Dispatch:
        dispatch = super()._open_round()
        return replace(dispatch, groups=_longest_first(dispatch))

    def _draw(self, count: int) -> Dispatch:
        dispatch = super()._draw(count)
        return replace(dispatch, groups=_longest_first(dispatch))


def _longest_first(dispatch: Dispatch) -> list[PromptGroup]:
    resumed, waiting = dispatch.groups[: dispatch.resumed], dispatch.groups[dispatch.resumed :]
    return [*resumed, *sorted(waiting, key=lambda group: (group.drawn_at_step, -group.prompt[ANSWERS].level))]


class TailRounds(TrainingRun):
    """Short rounds, and rounds of the groups that those have interrupted.

    Args:
        started: times as many groups as a short round is expected to need.
    """

    def __init__(self, scenario: Scenario, *, started: float) -> None:
        super().__init__(scenario, FIFO)
        valid_share = sum(map(_is_valid, scenario.workload().draw(1024, step=0))) / 1024
        self._needed = ceil(1.1 * scenario.train_batch_size / valid_share)
        self._sizes = {False: ceil(started * scenario.train_batch_size / valid_share), True: self._needed}
        self._line: list[PromptGroup] = []
        self.long_rounds = 0

    def step(self) -> StepMeasure:
        is_long = len(self._line) >= self._needed
        self.long_rounds += is_long
        rule = StopRuleName.FIFO if is_long else StopRuleName.FIRST_COMPLETED
        self.options, self.pool._stop_rule = replace(self.options, stop_rule=rule), rule
        self._over_sampling = OverSampling(
            target_valid_groups=self.options.target_valid_groups, batch_size=self._sizes[is_long], keeps_tokens=False
        )
        self.pool._over_sampling = self._over_sampling
        others = self._exchange(self._line) if is_long else []
        measure = super().step()
        if is_long:
            self._line = self._exchange(others)
        else:
            waiting = list(self.pool._waiting)
            self._line += waiting[: self._interrupted]
            self._exchange(waiting[self._interrupted :])
        self._put_off(self._line)
        return measure

    def _measure(self, simulated: Any, settlement: Any, **rest: Any) -> StepMeasure:
        self._interrupted = settlement.requeued  # in front of those that never started
        return super()._measure(simulated, settlement, **rest)

    def _exchange(self, groups: list[PromptGroup]) -> list[PromptGroup]:
        """Let these groups wait in place of those that do; returns those, which are put off."""
        before = list(self.pool._waiting)
        self.pool._waiting.clear()
        self.pool._waiting.extend(groups)
        self._put_off(before)
        return before

    def _put_off(self, groups: list[PromptGroup]) -> None:
        """They count as deferred in the ledger."""
        for group in groups:
            group.deferred_until = NEVER
        self.pool._deferred.groups = tuple(groups)


def _is_valid(group: PromptGroup) -> bool:
    metrics = group.prompt[ANSWERS].metrics
    return min(metrics) < max(metrics)


def rows(setting: Setting) -> Iterator[tuple[float, str, Start]]:
    """Correlation of lengths within a group, name of a system, and how it begins."""

    def plain(system: System) -> Start:
        return lambda scenario: TrainingRun(scenario, system)

    def ordered(system: System) -> Start:
        return lambda scenario: LongestFirst(scenario, system)

    def tail(started: float) -> Start:
        return lambda scenario: TailRounds(scenario, started=started)

    for correlation in (0.0, 0.5, 0.8):
        for system in (FIFO, HISTORY):
            yield correlation, system.name, plain(system)
    for correlation in (0.5, 0.8):
        for system in OTHERS:
            yield correlation, system.name, plain(system)
            yield correlation, f"{system.name}, longest first", ordered(system)
    yield 0.5, "verl sync", plain(verl_sync(groups=setting.groups))
    for started in STARTED:
        yield 0.5, f"tail rounds {started:g}", tail(started)


def measure(setting: Setting, correlation: float, start: Start) -> dict[str, float]:
    """Of a window of steps: seconds for each batch of natural length in the loss."""
    run = start(setting.scenario(length_correlation=correlation))
    for _ in range(WARMUP):
        run.step()
    window = max(FEWEST_STEPS, ceil(TRAJECTORIES / (setting.groups * setting.n)))
    steps = [run.step() for _ in range(window)]
    in_loss, trained = sum(step.in_loss_tok for step in steps), sum(step.trained_tok for step in steps)
    batch_tok = run.natural_len_tok * setting.groups * setting.n
    wasted = sum(step.wasted_tok for step in steps)
    return {
        "per_batch_s": round(sum(step.step_s for step in steps) / in_loss * batch_tok, 2),
        "off_policy": round(sum(step.off_policy_tok for step in steps) / in_loss, 4),
        "waste": round(wasted / (wasted + trained), 4),
        "length_bias": round(trained / (batch_tok * window), 4),
        "long_rounds": getattr(run, "long_rounds", 0),
        "steps": window,
    }


def summary(folder: Path = FOLDER) -> pd.DataFrame:
    """Geometric means over settings: over verl sync, over discard with fifo, and of an order over the usual one."""
    frame = pd.read_csv(folder / "runs.csv")
    seconds = frame.set_index(["setting", "correlation", "system"])["per_batch_s"]
    lines = []
    for (correlation, system), some in frame.groupby(["correlation", "system"], sort=False):
        own = system.removesuffix(", longest first").removesuffix(", history")

        def over(reference: str, correlation: float, some: pd.DataFrame = some) -> pd.Series:
            return some["per_batch_s"] / [seconds.get((one, correlation, reference)) for one in some["setting"]]

        line = {"Simulated: system": system, "Correlation": correlation, "Settings": len(some)}
        line["Over verl sync"] = geometric_mean(over("verl sync", 0.5)) if correlation == 0.5 else float("nan")
        fifo = over(FIFO.name, correlation)
        line |= {"Over discard fifo": geometric_mean(fifo), "Worst of these": fifo.max()}
        if own != system:
            usual = over(own, correlation)
            line |= {"Over the usual order": geometric_mean(usual), "Best": usual.min(), "Worst": usual.max()}
        line |= {name.capitalize().replace("_", " "): some[name].mean() for name in ("off_policy", "waste")}
        lines.append(line | {"Trained / natural length": some["length_bias"].mean()})
    return pd.DataFrame(lines)


def order_table() -> pd.DataFrame:
    """Of the committed results: what the order of start gives each strategy."""
    frame = summary()
    titles = {"Simulated: system": "Simulated", "Over the usual order": "Step, over the usual order"}
    shown = frame.dropna(subset="Over the usual order").rename(columns=titles)
    return shown[[*titles.values(), "Correlation", "Settings", "Best", "Worst", "Trained / natural length"]]


def tail_table() -> pd.DataFrame:
    """Of the committed results: rows that train on nothing old."""
    frame = summary()
    fresh = frame[(frame["Correlation"] == 0.5) & (frame["Off policy"] == 0.0)]
    titles = ["Simulated: system", "Settings", "Over verl sync", "Over discard fifo", "Worst of these"]
    return fresh[[*titles, "Trained / natural length"]]
