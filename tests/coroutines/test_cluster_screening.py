"""Two-stage groups in whole runs on virtual time: every strategy and stop rule, stops and restarts in mid-screening."""

import pytest

from recipe.async_dapo.config import Auto, RolloutStrategy
from recipe.async_dapo.core.screening import Screening
from recipe.async_dapo.core.stop_rules import StopRuleName

from ..support.simulated_cluster import Cluster, resumed
from ..support.simulated_options import STRATEGIES, options
from ..support.simulated_worker import Task, random_task

SCREENING = Screening(samples=2, keep_share=0.0)


def half_screened(cluster: Cluster) -> int:
    """Groups between rounds that have begun and have trajectories held back."""
    return sum(bool(SCREENING.held_back(group)) for group in cluster.buffer.pool.buffered)


@STRATEGIES
@pytest.mark.parametrize("stop_rule", StopRuleName)
def test_given_screening_when_steps_are_run_killed_and_resumed_then_every_prompt_is_in_one_term_of_the_ledger(
    start, strategy, stop_rule
) -> None:
    opts = options(
        rollout_n=4, rollout_strategy=strategy, stop_rule=stop_rule, screening=SCREENING, rollout_pool_size=8
    )
    cluster = start(opts, task=random_task(5))
    totals = {"screening/screened_groups": 0.0, "tokens/screened": 0.0, "screening/saved_tokens": 0.0}
    most_half_screened = 0
    for step in range(8):
        metrics = cluster.step()
        totals = {name: total + metrics[f"async_dapo/{name}"] for name, total in totals.items()}
        most_half_screened = max(most_half_screened, half_screened(cluster))
        if step == 4:
            cluster = resumed(start, cluster)
    ledger = cluster.buffer.pool.check_ledger()
    assert ledger["screened"] == totals["screening/screened_groups"] > 0
    assert ledger["filtered"] == 0, "with two metrics, what is not screened out is certain"
    assert totals["screening/saved_tokens"] == pytest.approx(totals["tokens/screened"]), "two of four were spared"
    if strategy is RolloutStrategy.PARTIAL and stop_rule is StopRuleName.FIRST_COMPLETED:
        assert most_half_screened > 0, "no stop came in mid-screening: the test shows nothing"


def test_given_screening_then_no_more_than_the_samples_start_until_two_differ_and_the_rest_starts_at_once(start):
    def metric_of(prompt_ids: list[int]) -> float:
        """Odd prompts always succeed; of the even ones the answers differ."""
        return float(prompt_ids[0] % 2 or prompt_ids[1] % 2)

    opts = options(rollout_n=5, screening=SCREENING, num_workers=1)
    cluster = start(opts, task=Task(lambda prompt_ids: 5, metric_of))
    (worker,) = cluster.workers
    sessions: dict[int, set[int]] = {}
    generate = worker._generate

    async def noted(sampling_params, uid, prompt_ids):
        sessions.setdefault(prompt_ids[0], set()).add(prompt_ids[1])
        return await generate(sampling_params, uid, prompt_ids)

    worker._generate = noted
    metrics = cluster.step()
    whole = {prompt for prompt, seen in sessions.items() if seen == set(range(5))}
    assert {prompt % 2 for prompt in whole} == {0} and len(whole) >= opts.target_valid_groups
    screened = {prompt for prompt, seen in sessions.items() if prompt % 2}
    assert all(sessions[prompt] == {0, 1} for prompt in screened) and screened
    assert metrics["async_dapo/tokens/filtered"] == 0
    alike = metrics["async_dapo/screening/screened_groups"]
    valid = metrics["async_dapo/round/trained_groups"] + cluster.buffer.pool.num_carried
    assert metrics["async_dapo/filter/rejected_ratio"] == alike / (alike + valid) > 0


@STRATEGIES
def test_given_that_every_group_is_kept_then_the_run_is_the_one_without_screening(start, strategy) -> None:
    def run(screening: Screening) -> list[dict[str, float]]:
        opts = options(
            rollout_n=4,
            rollout_strategy=strategy,
            stop_rule=StopRuleName.FIRST_COMPLETED,
            screening=screening,
            rollout_pool_size=Auto.AUTO,
            over_sampling_batch_size=Auto.AUTO,
        )
        cluster = start(opts, task=random_task(7))
        return cluster.steps(5)

    def unlike(metrics: list[dict[str, float]]) -> list[dict[str, float]]:
        own = ("/screening/kept", "stop_latency_s", "rollout_s")  # the last two are read from the real clock
        return [{k: v for k, v in step.items() if not any(name in k for name in own)} for step in metrics]

    off = run(Screening(samples=None, keep_share=0.0))
    assert unlike(run(Screening(samples=2, keep_share=1.0))) == unlike(off)
    assert all(step["async_dapo/ledger/screened"] == 0 for step in off)


def test_given_kept_groups_then_how_many_are_valid_after_all_is_counted(start) -> None:
    def metric_of(prompt_ids: list[int]) -> float:
        """By prompt: all fail, only the last answer succeeds, the first and the last do."""
        return float(prompt_ids[1] in {0: (), 1: (3,), 2: (0, 3)}[prompt_ids[0] % 3])

    opts = options(rollout_n=4, screening=Screening(samples=2, keep_share=0.5), stop_rule=StopRuleName.DRAIN)
    cluster = start(opts, task=Task(metric_of=metric_of))
    steps = cluster.steps(6)
    judged = range(int(steps[-1]["async_dapo/ledger/drawn"]))
    kept = [k % 3 for k in judged if opts.screening.keeps(f"group-{k}")]
    assert sum(step["async_dapo/screening/kept_groups"] for step in steps) == kept.count(0) + kept.count(1)
    assert sum(step["async_dapo/screening/kept_valid_groups"] for step in steps) == kept.count(1) > 0


def test_given_validation_then_nothing_is_screened(start) -> None:
    cluster = start(options(screening=SCREENING), task=Task(metric_of=lambda prompt_ids: 1.0))
    cluster.manager.config.actor_rollout_ref.rollout.val_kwargs.n = 3
    assert len(cluster.validate(4).keys) == 4 * 3
