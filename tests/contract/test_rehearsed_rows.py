"""Rehearsals that a benchmark runs."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

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
