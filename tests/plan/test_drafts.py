"""Drafts in the planner: what verifying costs, what accepted tokens save, and what a run's own record says of both."""

import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo_lab.plan.candidates import with_drafts
from recipe.async_dapo_lab.plan.costs import ServerConstants
from recipe.async_dapo_lab.plan.hardware import find_accelerator
from recipe.async_dapo_lab.plan.systems import recipe

from ..support.plan_settings import simulate, small_scenario

NEWER = ServerConstants(step_overhead_ms=1.5, request_overhead_ms=0.03)


@pytest.mark.parametrize(
    ("accepted", "ratio", "context_tok", "gain"),
    [(0.4, 0.27, 6000, 1.075), (0.6, 0.4, 6000, 1.23), (0.9, 0.45, 6000, 1.42)],
)
def test_an_8b_on_an_h100_that_is_full_gains_what_arithmetic_says(accepted, ratio, context_tok, gain):
    """52 requests fill the cache; a step takes 27.2 ms without drafts, with them 3 ms more, and for each request 0.05
    ms to draft and 0.03 ms for a drafted token to verify.
    """
    scenario = small_scenario(
        accelerator=find_accelerator("h100"), constants=NEWER, drafts_accepted=accepted, drafts_accepted_ratio=ratio
    )
    plain, drafting = scenario.step_cost(), scenario.step_cost(drafts=True)
    requests = plain.kv_room_tok // context_tok
    kv_tok = requests * context_tok
    assert plain.decode_s(1, requests, kv_tok) / drafting.decode_s(1, requests, kv_tok) == pytest.approx(gain, rel=0.01)
    assert drafting.kv_room_tok == plain.kv_room_tok and drafting.prefill_s(100) == plain.prefill_s(100)


def test_drafts_make_rollouts_shorter_and_change_no_decision_of_a_fixed_pool():
    scenario = small_scenario(drafts_accepted=0.6, training_s=1.0)
    system = recipe("partial", rollout_pool_size=16)
    plain, drafting = (simulate(scenario, one, steps=3) for one in (system, with_drafts(system)))
    assert [step.trained_tok for step in plain] == [step.trained_tok for step in drafting]
    assert all(fast.rollout_s < slow.rollout_s for fast, slow in zip(drafting, plain, strict=True))


def test_what_is_not_said_of_drafts_is_named():
    with pytest.raises(ConfigError, match="drafts_accepted=None: say how many tokens of drafts are accepted"):
        small_scenario().step_cost(drafts=True)
