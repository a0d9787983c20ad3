"""What the planner makes of drafts."""

from recipe.async_dapo_lab.plan.candidates import with_drafts
from recipe.async_dapo_lab.plan.costs import ENGINES
from recipe.async_dapo_lab.plan.systems import recipe

from ....support.plan_settings import simulate, small_scenario


def test_drafts_make_rollouts_shorter_and_change_no_decision_of_a_fixed_pool():
    scenario = small_scenario(constants=ENGINES["published-2025"], drafts_accepted=0.6, training_s=1.0)
    system = recipe("partial", rollout_pool_size=16)
    plain, drafting = (simulate(scenario, one, steps=3) for one in (system, with_drafts(system)))
    assert [step.trained_tok for step in plain] == [step.trained_tok for step in drafting]
    assert all(fast.rollout_s < slow.rollout_s for fast, slow in zip(drafting, plain, strict=True))
