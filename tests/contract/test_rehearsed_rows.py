"""Rehearsals that a benchmark runs."""

import signal
from collections.abc import Iterator
from typing import NoReturn

import pytest

from benchmarks.engine_bound import systems
from benchmarks.support import rehearsed


@pytest.fixture
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
def test_given_a_rehearsal_that_runs_when_sigterm_comes_then_its_contexts_are_left(monkeypatch, tmp_path):
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
def test_given_a_setting_then_its_systems_are_those_that_its_servers_allow(monkeypatch, name):
    monkeypatch.setattr(systems, "_settled_step_s", lambda scenario, row: 0.0)
    scenario = systems.SETTINGS[name].scenario()
    rows = systems.rows(scenario)
    assert ("verl separate_async, 0.05 s poll" in rows) is (scenario.num_servers > 1)
    for row in rows.values():
        row.planned.options(scenario)
    assert "async_dapo.rollout_pool_size=null" in rows["partial, fixed lanes"].overrides
