"""Rehearsals that a benchmark runs."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pandas as pd
import pytest

from benchmarks.engine_bound import plan, summary, systems
from benchmarks.support import rehearsed


@pytest.fixture
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
def test_given_a_rehearsal_that_runs_when_sigterm_comes_then_its_contexts_are_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left: list[str] = []

    def struck(overrides: list[str]) -> NoReturn:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            left.append("context")
        raise AssertionError("the signal had no effect")

    monkeypatch.setattr(rehearsed, "rehearse", struck)
    with pytest.raises(SystemExit):
        rehearsed.measure([], tmp_path, steps=1, warmup=0, speedup=1.0)
    assert left == ["context"]


@pytest.mark.parametrize("name", systems.SETTINGS)
def test_given_a_setting_then_its_systems_are_those_that_its_servers_allow(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(systems, "_settled_step_s", lambda scenario, row: 0.0)
    scenario = systems.SETTINGS[name].scenario()
    rows = systems.rows(scenario)
    assert ("verl separate_async, 0.05 s poll" in rows) is (scenario.num_servers > 1)
    for row in rows.values():
        row.planned.options(scenario)
    assert "async_dapo.rollout_pool_size=null" in rows["partial, fixed lanes"].overrides


def test_given_rehearsed_rows_then_the_planners_columns_alone_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["2 servers, B=16, n=8, 16K", "2 servers, B=8, n=8, 8K"]
    monkeypatch.setattr(plan, "rows", lambda scenario: {"verl sync": f"sync, {scenario.train_batch_size}"})
    monkeypatch.setattr(plan, "planned", lambda scenario, row, **window: {"planned_step_s": f"{row}, {window}"})
    columns = {"system": "verl sync", "steps": "5", "step_s": "656.70", "planned_step_s": "697.44"}
    runs = pd.DataFrame([{"setting": settings[number]} | columns for number in (0, 1, 0)])

    again = plan.plan(runs)

    kept = ["setting", "system", "steps", "step_s"]
    assert again[kept].to_dict("records") == runs[kept].to_dict("records")
    window = {"steps": 5, "warmup": 2}
    assert again["planned_step_s"].tolist() == [f"sync, {groups}, {window}" for groups in (16, 8, 16)]


def test_a_rehearsed_step_stands_beside_the_planned_one_whole_and_per_trained_token() -> None:
    run = dict.fromkeys(summary.MEASURES, 1.0) | {"setting": "small", "system": summary.BASE, "is_valid": True}
    run |= {"step_s": 120.0, "length_bias": 1.2, "planned_step_s": 100.0, "planned_length_bias": 1.05}
    older = run | {"system": "partial", "planned_length_bias": None}

    rows = summary.engine_bound_table(pd.DataFrame([run, older])).to_dict("records")

    assert [row["Over planned"] for row in rows] == ["+20.0%", "+20.0%"]
    assert rows[0]["Over planned, per token"] == "+5.0%" and pd.isna(rows[1]["Over planned, per token"])
