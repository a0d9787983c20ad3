"""Rounds that size themselves on modelled engines, closed loop: the production controller, leases and placement."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.async_dapo.core.concurrency import FIRST_SHARE, TOO_MANY, ConcurrencyState
from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import recipe

from ..support.plan_settings import small_scenario

ROUNDS, CONVERGED = 8, 2
DEFAULTS = recipe("defaults").with_overrides({"algorithm.filter_groups.max_num_gen_batches": 0})
CLUSTERS = st.builds(
    lambda median_tok, sigma, valid, **given: small_scenario(
        lengths=LogNormalLengths(median_tok=median_tok, sigma=sigma, correlation=0.5),
        valid_share=valid,
        **given,
    ),
    median_tok=st.sampled_from([100, 400, 1200]),
    sigma=st.sampled_from([0.3, 0.9, 1.4]),
    valid=st.sampled_from([0.3, 0.6, 1.0]),
    num_servers=st.integers(1, 4),
    gpu_memory_utilization=st.sampled_from([0.165, 0.17, 0.2, 0.4]),  # room for 6 to 120 of the longest
    train_batch_size=st.sampled_from([4, 8, 16]),
    seed=st.integers(0, 99),
)


@pytest.mark.slow
@settings(max_examples=10)
@given(CLUSTERS, st.sampled_from([None, 10, 300]))
def test_given_any_cluster_and_guess_then_requests_hardly_wait_no_lease_is_lost_and_nothing_starves(
    scenario, guess_tok
):
    run = TrainingRun(scenario, DEFAULTS)
    if guess_tok is not None:  # as in the checkpoint of a run with shorter responses
        learned = ConcurrencyState(context_tok=guess_tok, is_measured=True, share=FIRST_SHARE)
        run._fleet.balance.controller.restore(learned)
    generated_tok = recomputed_tok = 0
    held_s = waited_s = 0.0
    for number in range(ROUNDS):
        capacity, drawn_before = run._fleet.balance.capacity, run.pool.ledger.drawn
        ran_s = run._fleet.counters().request_s
        step = run.step()
        assert step.inflight_max <= capacity and run._fleet.leases.total_inflight == 0
        if number >= CONVERGED:
            generated_tok, recomputed_tok = generated_tok + step.generated_tok, recomputed_tok + step.recomputed_tok
            held_s += run._fleet.lease_s
            waited_s += run._fleet.lease_s - (run._fleet.counters().request_s - ran_s)
        started = [one for group in run.pool.buffered for one in group.trajectories if one.has_started]
        most = run.options.max_staleness + 1  # it may have been carried once before its first token
        assert max((one.age for one in started), default=0) <= most, "one is never continued"
        assert run.pool.ledger.drawn >= drawn_before
    assert recomputed_tok <= TOO_MANY * generated_tok, "more is preempted than what is acted upon"
    assert waited_s <= 0.1 * held_s, "engines were given more than they can run"
