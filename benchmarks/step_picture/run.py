"""Simulates some steps of verl's modes and of this recipe, and notes what each engine holds at every moment."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any

import pandas as pd

from benchmarks.defaults.settings import SETTINGS
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo_lab.plan.engine import Request
from recipe.async_dapo_lab.plan.fleet import Fleet, VirtualClock
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import System, recipe, verl_colocate_async, verl_sync

SETTING = "64 x H100, B=256, n=8, 8K, median 4K, sigma 0.9"
HIDDEN_STEPS = 3  # until rounds begin with what the last one left
SHOWN_S = 900.0
EVERY_S = 2.0
SHOWN_ENGINES = 8  # the first ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one engine holds at a moment of a run."""

    system: str
    step: int
    time_s: float  # since the first step that is shown
    server: int
    running: int  # requests that get a token in each of its steps
    continued_share: float  # of the requests that it holds: an earlier round interrupted their trajectories


class WatchedFleet(Fleet):
    """Servers whose requests are counted at regular moments of a round."""

    def __init__(self, scenario: Scenario, options: AsyncDAPOConfig) -> None:
        super().__init__(scenario, options)
        self._prompt_len_tok = scenario.prompt_len_tok
        self._is_continued: dict[str, bool] = {}  # by the name of its lease
        self.counts: list[tuple[float, str, int, float]] = []  # seconds of the round, server, running, continued share

    def open(self, clock: VirtualClock, on_end: Callable[[Request], None]) -> None:
        super().open(clock, on_end)
        self.counts = []
        self._is_continued.clear()
        clock.at(0.0, partial(self._count, clock))

    def send(self, lease_id: str, request: Request) -> None:
        self._is_continued[lease_id] = request.context_tok > self._prompt_len_tok
        super().send(lease_id, request)

    def release(self, lease_id: str) -> None:
        self._is_continued.pop(lease_id, None)
        super().release(lease_id)

    def _count(self, clock: VirtualClock) -> None:
        held = [(self.leases.server_of(lease_id), was_begun) for lease_id, was_begun in self._is_continued.items()]
        for server_id, engine in islice(self.engines.items(), SHOWN_ENGINES):
            here = [was_begun for holder, was_begun in held if holder == server_id]
            share = sum(here) / len(here) if here else 0.0
            self.counts.append((clock.now_s, server_id, engine.num_running, share))
        clock.at(clock.now_s + EVERY_S, partial(self._count, clock))


def simulate() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Samples of engines, and a row a step: when its engines stopped and when it ended."""
    setting = next(one for one in SETTINGS if str(one) == SETTING)
    scenario = setting.scenario()
    groups = setting.groups
    systems = (verl_sync(groups=groups), verl_colocate_async(groups=groups), recipe("this recipe"))
    samples, steps = zip(*(_run(scenario, system) for system in systems), strict=True)
    return pd.concat(samples, ignore_index=True), pd.concat(steps, ignore_index=True)


def _run(scenario: Scenario, system: System) -> tuple[pd.DataFrame, pd.DataFrame]:
    fleets: list[WatchedFleet] = []

    def watched(scenario: Scenario, options: AsyncDAPOConfig) -> Fleet:
        fleets.append(WatchedFleet(scenario, options))
        return fleets[-1]

    run = TrainingRun(scenario, system, watched)
    for _ in range(HIDDEN_STEPS):
        run.step()
    samples: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    start_s = 0.0
    while start_s < SHOWN_S:
        measure, step = run.step(), len(steps)
        for time_s, server_id, running, continued_share in fleets[0].counts:
            one = Sample(
                system=system.name,
                step=step,
                time_s=start_s + time_s,
                server=int(server_id.rpartition("-")[2]),
                running=running,
                continued_share=continued_share,
            )
            samples.append(asdict(one))
        end_s = start_s + measure.step_s
        steps.append({"system": system.name, "step": step, "stop_s": start_s + measure.rollout_s, "end_s": end_s})
        start_s = end_s
    return pd.DataFrame(samples), pd.DataFrame(steps)
