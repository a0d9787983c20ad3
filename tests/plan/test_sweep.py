"""Candidates on several processes."""

from pathlib import Path

import pytest

from recipe.async_dapo.config import ConfigError
from recipe.async_dapo.plan import sweep
from recipe.async_dapo.plan.candidates import Candidate
from recipe.async_dapo.plan.measures import StepMeasure
from recipe.async_dapo.plan.scenario import Scenario
from recipe.async_dapo.plan.systems import recipe

from ..support.plan_settings import small_scenario

REFUSED, COUNT = "refused", 40
simulate = sweep.simulate


def simulate_and_note(scenario: Scenario, candidate: Candidate, **kwargs) -> tuple[StepMeasure, float]:
    """Leaves a file for each candidate that it has begun."""
    name = candidate.system.name
    if name == REFUSED:
        raise ConfigError("system", name, "cannot be simulated")
    Path(f"{name}.begun").touch()
    return simulate(scenario, candidate, **kwargs)


def test_given_an_error_then_no_other_candidate_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "simulate", simulate_and_note)
    candidates = [
        Candidate(system=recipe(name), strategy="partial", stop_rule="", concurrency=None)
        for name in ("first", REFUSED, *map(str, range(COUNT)))
    ]
    with pytest.raises(ConfigError, match="system=refused"):
        sweep.sweep(small_scenario(), candidates, steps=12, warmup=0, jobs=2)
    assert len(list(tmp_path.glob("*.begun"))) < COUNT / 2
