"""One prompt group: failures and the judgement, with nothing left running."""

import asyncio
import math

import pytest
from ray.exceptions import ActorDiedError
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from recipe.async_dapo.config import ConfigError
from recipe.async_dapo.core.outcome import Verdict
from recipe.async_dapo.core.trajectory import BrokenRecord, PromptGroup, Trajectory
from recipe.async_dapo.engines.engine_requests import EnginesUnavailable
from recipe.async_dapo.option_values import OnRewardError
from recipe.async_dapo.store import rows_of

from ..support.rollout_world import N, finished, group, outcome_of, rollout, scores
from ..support.simulation import now_s, simulate


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((0, 1, 0, 0), Verdict.VALID), ((1, 1, 1, 1), Verdict.FILTERED), ((0,) * 4, Verdict.FILTERED)],
)
def test_given_all_trajectories_end_then_the_group_is_judged_with_the_last_one(values, verdict) -> None:
    async def main() -> None:
        held = group()
        outcome = await outcome_of(rollout(compute_score=scores(*values)), held)
        assert outcome.verdict is verdict
        assert outcome.response_lens_tok == (1,) * N and (outcome.oldest_version, outcome.newest_version) == (0, 0)
        assert now_s() == pytest.approx(N) and not held.unfinished

    simulate(main())


def test_given_the_filter_off_when_nothing_varies_then_the_group_is_valid() -> None:
    outcome = simulate(outcome_of(rollout(compute_score=scores(1, 1, 1, 1), is_filtered=False)))
    assert outcome.verdict is Verdict.VALID


@pytest.mark.parametrize(("value", "reason"), [(ValueError("broken"), "reward_error"), (math.nan, "reward_not_finite")])
def test_given_a_reward_that_fails_for_good_when_groups_are_dropped_then_the_siblings_are_ended_at_once(
    value, reason
) -> None:
    async def main() -> None:
        outcome = await outcome_of(rollout(compute_score=scores(0, value)), group())
        assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, reason)
        assert now_s() == pytest.approx(2)  # sessions 2 and 3 were still generating

    simulate(main())


def test_given_a_reward_that_fails_for_good_when_the_policy_is_raise_then_training_ends_with_its_reason() -> None:
    failing = rollout(compute_score=scores(ValueError("broken")), on_error=OnRewardError.RAISE)
    with pytest.raises(RuntimeError, match=r"reward_error.*broken.*on_error=raise"):
        simulate(failing.run(group()))


@pytest.mark.parametrize("on_error", OnRewardError)
def test_given_an_agent_loop_that_raises_then_the_group_is_dropped_and_counted(on_error: OnRewardError) -> None:
    async def broken(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await asyncio.sleep(1)
        if trajectory.session_id == 1:
            raise KeyError("broken")
        await asyncio.sleep(100)
        return finished(trajectory)

    outcome = simulate(outcome_of(rollout(broken, on_error=on_error)))
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "generation_error")


@pytest.mark.parametrize(
    "error",
    [ActorDiedError(), EnginesUnavailable("none"), ConfigError("key", 1, "remedy"), BrokenRecord("no log-probs")],
    ids=repr,
)
def test_given_a_part_of_the_system_gone_then_it_is_no_failed_group_but_an_error(error: Exception) -> None:
    async def broken(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await asyncio.sleep(1 + trajectory.session_id)
        raise error

    with pytest.raises(BaseExceptionGroup) as raised:
        simulate(rollout(broken).run(group()))
    assert raised.value.exceptions == (error,)


def test_given_a_failed_trajectory_and_a_dead_actor_at_once_then_the_error_is_not_hidden_by_the_failure() -> None:
    async def broken(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await asyncio.sleep(1)
        raise ActorDiedError() if trajectory.session_id else KeyError("refused")

    with pytest.raises(BaseExceptionGroup) as raised:
        simulate(rollout(broken).run(group()))
    assert all(isinstance(error, ActorDiedError) for error in raised.value.exceptions)


def test_given_validation_when_trajectories_fail_then_the_others_are_kept() -> None:
    async def broken(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        await asyncio.sleep(1)
        if trajectory.session_id == 1:
            raise KeyError("refused")
        return finished(trajectory)

    async def main() -> None:
        held = group()
        outcome = await outcome_of(rollout(broken, scores(0.0, ValueError("broken"), 0.0), keeps_failures=True), held)
        assert outcome.verdict is Verdict.VALID
        assert [trajectory.is_finished for trajectory in held.trajectories].count(True) == 2
        assert outcome.failed == 2 and outcome.reason == "generation_error"
        assert outcome.cause is not None and "refused" in outcome.cause.summary

    simulate(main())


def test_generated_trajectories_are_told_once_each_before_they_are_scored() -> None:
    told: list[tuple[float, str]] = []

    async def main() -> None:
        running = rollout(
            compute_score=scores(0, 1, 0, 1, takes_s=10), on_generated=lambda uid: told.append((now_s(), uid))
        )
        await running.run(group())

    simulate(main())
    assert told == [(pytest.approx(k), "group") for k in (1, 2, 3, 4)]


async def unreset(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
    """The second one's environment does not start: it returns a masked output, and has asked no engine."""
    await asyncio.sleep(1)
    if trajectory.session_id != 1:
        return finished(trajectory)
    return [AgentLoopOutput(prompt_ids=[1], response_ids=[9, 9], response_mask=[0, 0], metrics=AgentLoopMetrics())]


def test_given_a_trajectory_that_samples_no_token_then_it_is_a_counted_failure() -> None:
    outcome = simulate(outcome_of(rollout(unreset)))
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "generation_error")
    assert outcome.cause is not None and "without a generated token" in outcome.cause.summary


def test_given_validation_when_a_trajectory_samples_no_token_then_the_others_are_stored() -> None:
    async def main() -> None:
        held = group()
        outcome = await outcome_of(rollout(unreset, keeps_failures=True), held)
        assert outcome.verdict is Verdict.VALID
        rows = list(rows_of(held, dispatched_at_step=0))
        assert [key for key, _, _ in rows] == ["group_0_0", "group_2_0", "group_3_0"]

    simulate(main())


def test_given_an_output_without_tokens_beside_others_then_it_is_a_counted_failure() -> None:
    async def empty(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        nothing = AgentLoopOutput(prompt_ids=[1], response_ids=[], response_mask=[], metrics=AgentLoopMetrics())
        return [nothing, *finished(trajectory)]

    outcome = simulate(outcome_of(rollout(empty)))
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "generation_error")
