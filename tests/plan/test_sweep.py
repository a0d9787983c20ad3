"""Candidates on several processes, and the steps that are measured."""

from pathlib import Path

import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo_lab.plan import sweep
from recipe.async_dapo_lab.plan.candidates import Candidate, bound_of, pool_options
from recipe.async_dapo_lab.plan.measures import StepMeasure
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.systems import recipe

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


@pytest.mark.parametrize("pool_size", [256, 384, 576])
def test_given_rounds_that_feed_several_steps_then_measured_steps_generate_what_they_train(pool_size, monkeypatch):
    scenario = small_scenario(train_batch_size=32)
    monkeypatch.setattr(sweep, "TRAJECTORIES_TO_MEASURE", 8 * 32 * 4)
    options = pool_options(scenario, pool_size)
    drain = recipe("drain", rollout_strategy="discard", stop_rule="drain", **options)
    candidate = Candidate(system=drain, strategy="discard", stop_rule="drain", concurrency=pool_size)

    mean, natural_len_tok = simulate(scenario, candidate, steps=None, warmup=None)

    spent_tok = mean.trained_tok + mean.filtered_tok + mean.wasted_tok
    assert mean.generated_tok == pytest.approx(spent_tok, abs=sweep.EVEN * mean.trained_tok)
    rollout_s = mean.rollout_s * natural_len_tok / mean.trained_len_tok
    assert bound_of(scenario).rollout_s <= (1 + sweep.EVEN) * rollout_s
