"""A simulated run: nothing generated vanishes, the seed decides, any scheduler's laws hold, rounds size themselves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.core.concurrency import FIRST_SHARE, TOO_MANY, ConcurrencyState
from recipe.async_dapo.core.pool import PromptPool
from recipe.async_dapo.core.staleness import StalenessLimit
from recipe.async_dapo_lab.plan.costs import ServerConstants
from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import (
    april,
    async_dapo_2025,
    copris,
    dynamic_sampling,
    recipe,
    verl_colocate_async,
    verl_sync,
)
from recipe.async_dapo_lab.plan.workload import Answers, Workload

from ..support.costly import costly
from ..support.plan_settings import (
    OPTIONS,
    assert_nothing_vanished,
    mean_step,
    natural_len_tok,
    simulate,
    small_scenario,
)

OTHER_SYSTEMS = {
    "verl sync": verl_sync(groups=8),
    "colocate_async": verl_colocate_async(groups=8),
    "dynamic sampling": dynamic_sampling(batch=8),
    "2025": async_dapo_2025(over_sampling=16),
    "APRIL": april(over_sampling=16),
    "CoPRIS": copris(pool_size=24, over_sampling=32),
}


@pytest.mark.slow
@costly()
@given(OPTIONS, st.integers(0, 99), st.sampled_from([0.0, 1.5]))
def test_given_any_options_then_every_generated_token_is_accounted_for(options, seed, reward_s):
    scenario = small_scenario(seed=seed, reward_s=reward_s)
    system = recipe("any", **options)
    unlimited = {"algorithm.filter_groups.max_num_gen_batches": 0}
    assert_nothing_vanished(TrainingRun(scenario, system.with_overrides(unlimited)), steps=4)


@pytest.mark.parametrize("name", OTHER_SYSTEMS)
def test_given_another_system_then_every_generated_token_is_accounted_for(name):
    assert_nothing_vanished(TrainingRun(small_scenario(), OTHER_SYSTEMS[name]), steps=5)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER_SYSTEMS)
def test_given_a_seed_when_simulated_twice_then_every_number_is_the_same(name):
    first, second = (simulate(small_scenario(seed=3), OTHER_SYSTEMS[name]) for _ in range(2))
    assert first == second
    assert simulate(small_scenario(seed=4), OTHER_SYSTEMS[name]) != first


@pytest.mark.slow
def test_given_staleness_limit_then_no_loss_token_is_older_and_what_is_older_is_counted():
    scenario = small_scenario(lengths=LogNormalLengths(median_tok=400, sigma=1.5, correlation=0.5))
    options = {"rollout_strategy": "partial", "rollout_pool_size": 200, "over_sampling_batch_size": 80}
    free = simulate(scenario, recipe("free", max_staleness=None, **options), steps=20)
    bound = simulate(scenario, recipe("bound", max_staleness=1, **options), steps=20)
    assert max(step.staleness_max for step in free) > 2
    assert sum(step.withheld_tok for step in free) == 0
    assert max(step.staleness_max for step in bound) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", [1, 2, 4])
@pytest.mark.parametrize("valid_share", [0.4, 0.8])
def test_given_a_pool_that_sizes_itself_and_a_long_tail_then_no_token_is_masked(max_staleness, valid_share):
    lengths = LogNormalLengths(median_tok=200, sigma=1.4, correlation=0.5)
    scenario = small_scenario(lengths=lengths, valid_share=valid_share)
    steps = simulate(scenario, recipe("auto", max_staleness=max_staleness), steps=30)
    assert sum(step.withheld_tok + step.wasted_tok for step in steps) == 0


def test_given_retired_groups_then_their_prompts_and_no_others_are_answered_anew(monkeypatch):
    run = TrainingRun(small_scenario(), recipe("loose", rollout_strategy="partial", max_staleness=None))
    answered: list[str] = []
    retired: list[str] = []

    def answer_anew(self: Workload, answers: Answers) -> None:
        answered.append(f"prompt-{answers.number}")

    def retire(self: PromptPool, step: int) -> list[str]:
        given_up = unspied(self, step)
        again = [group for group in self.state().waiting if group.drawn_at_step == step]
        assert all(group.uid.startswith("retry") for group in again)
        retired.extend(group.key for group in again)
        return given_up

    unspied = PromptPool.retire
    monkeypatch.setattr(PromptPool, "retire", retire)
    monkeypatch.setattr(Workload, "answer_anew", answer_anew)
    for _ in range(4):
        run.step()
    run.pool._staleness = StalenessLimit(max_staleness=0)  # tighter than the rounds know
    measures = [run.step() for _ in range(2)]
    assert sum(step.retired_groups for step in measures) == len(retired) > 0
    assert answered == retired


@pytest.mark.slow
@pytest.mark.parametrize("pool_size", [256, "auto"])
def test_given_many_more_prompts_than_a_step_trains_when_none_may_be_kept_then_each_has_its_turn(pool_size):
    options = {"rollout_strategy": "partial", "max_staleness": 0, "over_sampling_batch_size": 128}
    run = TrainingRun(small_scenario(), recipe("many", rollout_pool_size=pool_size, **options))
    for _ in range(40):
        run.step()
    state = run.pool.state()
    held = [*state.waiting, *state.buffered, *(carried.group for carried in state.carried)]
    drawn = [int(group.key.removeprefix("prompt-")) for group in held]
    assert max(drawn) - min(drawn) < 3 * 128, "some wait while others that came much later are trained"


@pytest.mark.slow
def test_given_completion_order_and_forgotten_prompts_then_training_prefers_short_answers():
    scenario = small_scenario(train_batch_size=32, num_servers=8)
    natural = natural_len_tok(scenario)
    biased = mean_step(scenario, async_dapo_2025(over_sampling=128, max_concurrent_prompts=64))
    assert biased.trained_len_tok < 0.85 * natural


@pytest.mark.slow
@pytest.mark.parametrize(
    "better",
    [
        {"constants": ServerConstants(step_overhead_ms=0.5)},
        {"constants": ServerConstants(request_overhead_ms=0.01)},
        {"num_servers": 4},
        {"valid_share": 0.9},
        {"lengths": LogNormalLengths(median_tok=200, sigma=0.9, correlation=0.5)},
        {"training_s": 0.0},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_given_anything_better_then_a_step_is_shorter(better):
    worse = mean_step(small_scenario(), recipe("default"))
    assert mean_step(small_scenario(**better), recipe("default")).step_s < worse.step_s


@pytest.mark.slow
def test_given_a_full_cache_then_preemptions_are_counted_and_cost_time():
    tight = small_scenario(gpu_memory_utilization=0.158)
    roomy = small_scenario()
    system = recipe("all", max_concurrent_prompts=8, rollout_strategy="partial")
    assert mean_step(tight, system).preemptions > 0 == mean_step(roomy, system).preemptions
    assert mean_step(tight, system).rollout_s > mean_step(roomy, system).rollout_s


def test_given_prompts_that_never_suffice_then_it_fails_as_training_would():
    hopeless = small_scenario(valid_share=0.001)
    with pytest.raises(ConfigError, match="max_num_gen_batches=10"):
        TrainingRun(hopeless, recipe("default")).step()


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
