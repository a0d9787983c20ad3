"""Inline reward: every way a reward call can go wrong has a counted reason, and none blocks or slips through."""

import asyncio
import json
import math
import pickle
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.metric_utils import process_validation_metrics
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from recipe.async_dapo.config.options import REWARD_IMPORT_LIMIT_S
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.core.outcome import Verdict
from recipe.async_dapo.core.trajectory import Trajectory
from recipe.async_dapo.core.users_errors import TrajectoryFailed
from recipe.async_dapo.recording import TrajectoryRecorder
from recipe.async_dapo.rollout.agent_loops import Loops
from recipe.async_dapo.rollout.reward import RewardScorer
from recipe.async_dapo.rollout.reward_values import plain_reward
from recipe.async_dapo.runtime.actor_watch import ActorDied
from recipe.async_dapo.store import rows_of
from recipe.async_dapo.training.validation import fields_to_average

from ..support.costly import costly
from ..support.fakes import ScriptedReward
from ..support.rollout_world import group, outcome_of, rollout
from ..support.scripted_reward import reward_options
from ..support.simulation import now_s, simulate

TIMEOUT_S = 60.0


RECORDER = TrajectoryRecorder(trajectory=Trajectory(session_id=0), runner=Loops())
UNREACHABLE = ActorUnavailableError("its worker cannot be reached", None)


def output() -> AgentLoopOutput:
    return AgentLoopOutput(prompt_ids=[1], response_ids=[2], response_mask=[1], metrics=AgentLoopMetrics())


def scorer(reward: Any, *, metric: str | None = "acc", max_retries: int = 0, in_line: bool = True) -> RewardScorer:
    reward_ = reward_options(timeout_s=TIMEOUT_S, waits_in_line=in_line, max_retries=max_retries)
    options: Any = SimpleNamespace(
        reward=reward_, filter=SimpleNamespace(metric=metric), reward_function="compute_score of reward.py"
    )
    return RewardScorer(reward, options=options)


def test_given_a_score_then_every_output_of_the_trajectory_has_it() -> None:
    outputs = [output(), output(), output()]
    simulate(scorer(ScriptedReward(0.5)).score(outputs, {}, RECORDER))
    assert [scored.reward_score for scored in outputs] == [0.5] * 3
    assert [scorer(None).metric_of(scored) for scored in outputs] == [0.5] * 3


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        (ValueError("broken"), "reward_error"),
        (RayTaskError("f", "", UNREACHABLE).as_instanceof_cause(), "reward_error"),  # the function's own call
        (TimeoutError("the reward's own"), "reward_timeout"),
        (math.nan, "reward_not_finite"),
        (math.inf, "reward_not_finite"),
        (None, "reward_not_finite"),
        ("no number", "reward_not_finite"),
    ],
)
def test_given_a_reward_that_fails_for_good_then_it_is_tried_as_often_as_allowed_and_the_reason_is_named(
    attempt: Any, reason: str
) -> None:
    for max_retries in range(3):
        reward = ScriptedReward(attempt)
        failing = scorer(reward, max_retries=max_retries)
        with pytest.raises(TrajectoryFailed) as failed:
            simulate(failing.score([output()], {}, RECORDER))
        assert failed.value.reason == reason
        assert reward.calls == 1 + max_retries


def test_given_a_metric_that_is_no_number_then_the_reward_is_not_finite() -> None:
    async def bad_metric(outputs: list[AgentLoopOutput], sample: dict[str, Any]) -> None:
        outputs[-1].reward_score = 1.0
        outputs[-1].extra_fields["reward_extra_info"] = {"acc": None}

    with pytest.raises(TrajectoryFailed, match="reward_not_finite"):
        simulate(scorer(bad_metric).score([output()], {}, RECORDER))


async def test_given_a_reward_that_fails_once_when_retried_then_the_second_score_counts() -> None:
    for first in (ValueError("broken"), math.nan):
        scored, reward = output(), ScriptedReward(first, 0.25)
        await scorer(reward, max_retries=1).score([scored], {}, RECORDER)
        assert (scored.reward_score, reward.calls) == (0.25, 2)


async def test_given_a_reward_that_hangs_without_a_process_of_ours_then_each_attempt_ends_at_its_time_limit() -> None:
    with pytest.raises(TrajectoryFailed, match="reward_timeout"):
        await scorer(ScriptedReward(takes_s=10**6), max_retries=2, in_line=False).score([output()], {}, RECORDER)
    assert now_s() == pytest.approx(3 * TIMEOUT_S)


async def test_given_a_burst_of_slow_answers_then_those_that_wait_in_line_for_a_process_do_not_time_out() -> None:
    processes = asyncio.Semaphore(2)

    async def compute_score(outputs: list[AgentLoopOutput], _: dict[str, Any]) -> None:
        async with processes:
            await asyncio.sleep(2.0)
        outputs[-1].reward_score = 1.0

    burst, answers = scorer(compute_score, metric=None), [output() for _ in range(1024)]
    async with asyncio.TaskGroup() as tasks:
        for answer in answers:
            tasks.create_task(burst.score([answer], {}, RECORDER))
    assert [answer.reward_score for answer in answers] == [1.0] * 1024
    assert now_s() == 1024


def test_given_a_metric_the_reward_does_not_return_then_the_configuration_is_blamed_at_once() -> None:
    for reward in (ScriptedReward(metric=None), ScriptedReward(metric="score")):
        with pytest.raises(ConfigError, match=r"algorithm.filter_groups.metric=acc"):
            simulate(scorer(reward, max_retries=3).score([output()], {}, RECORDER))
        assert reward.calls == 1


def test_given_a_dead_reward_worker_then_it_is_no_bad_answer() -> None:
    with pytest.raises(ActorDied, match="a reward worker is gone"):
        simulate(scorer(ScriptedReward(ActorDiedError()), max_retries=3).score([output()], {}, RECORDER))


def test_given_an_actor_of_the_reward_function_s_that_has_died_then_that_is_its_error() -> None:
    """As Ray raises it where the function runs in the reward worker itself."""
    raised = RayTaskError("compute_score", "Traceback ...", ActorDiedError()).as_instanceof_cause()
    assert isinstance(raised, ActorDiedError)
    with pytest.raises(TrajectoryFailed, match="reward_error"):
        simulate(scorer(ScriptedReward(raised)).score([output()], {}, RECORDER))


def test_given_a_reward_worker_that_cannot_be_reached_for_a_while_then_no_attempt_is_spent_on_it() -> None:
    scored = output()
    simulate(scorer(ScriptedReward(*[UNREACHABLE] * 10, 0.5), max_retries=0).score([scored], {}, RECORDER))
    assert scored.reward_score == 0.5


async def test_given_a_reward_worker_that_cannot_be_reached_for_good_then_an_attempt_ends_at_its_time_limit() -> None:
    with pytest.raises(TrajectoryFailed, match="reward_timeout: its reward worker cannot be reached for 360"):
        await scorer(ScriptedReward(UNREACHABLE)).score([output()], {}, RECORDER)
    assert now_s() == pytest.approx(REWARD_IMPORT_LIMIT_S + TIMEOUT_S)


@pytest.mark.parametrize("metric", [None, "acc"])
def test_given_an_agent_loop_that_scores_itself_then_its_score_counts_and_a_missing_metric_is_named(metric) -> None:
    async def nothing(outputs: list[AgentLoopOutput], sample: dict[str, Any]) -> None:
        """verl's worker does not score an output that has a score."""

    outputs = [output(), output()]
    outputs[-1].reward_score = 0.75
    if metric is None:
        simulate(scorer(nothing, metric=None).score(outputs, {}, RECORDER))
        assert [scored.reward_score for scored in outputs] == [0.75] * 2
    else:
        with pytest.raises(ConfigError, match=r"filter_groups\.metric=acc: the agent loop returns only \[\]"):
            simulate(scorer(nothing).score(outputs, {}, RECORDER))


async def test_given_an_agent_loop_whose_own_score_is_no_number_then_it_fails_at_once_and_the_function_is_not_asked():
    async def as_verl(outputs: list[AgentLoopOutput], _: dict[str, Any]) -> None:
        if outputs[-1].reward_score is None:
            outputs[-1].reward_score = 1.0

    scored = output()
    scored.reward_score = math.nan
    with pytest.raises(TrajectoryFailed, match="reward_not_finite: the agent loop returns score=nan"):
        await scorer(as_verl, metric=None, max_retries=2).score([scored], {}, RECORDER)


NUMBERS = [
    *(np.dtype(kind).type(1) for kind in ("bool", "int8", "uint64", "float16", "float32", "float64", "longdouble")),
    *(torch.tensor(1, dtype=kind) for kind in (torch.bool, torch.int64, torch.bfloat16, torch.float32)),
    *(np.array(1.0), Decimal(1), Fraction(1), True, 1, 1.0),
]


async def is_stored(held: Any, returned: list[Any], *, by_process: bool) -> Any:
    """Scores a group of four with what a function has returned, in a process of its own or not; the rows that it makes,
    as the trainer reads them."""
    left = iter(returned)

    async def compute_score(outputs: list[AgentLoopOutput], _: dict[str, Any]) -> None:
        result = next(left)
        if by_process:
            result = pickle.loads(pickle.dumps(plain_reward(result)))
        outputs[-1].reward_score = result["score"]
        outputs[-1].extra_fields["reward_extra_info"] = dict(result)

    outcome = await outcome_of(rollout(compute_score=compute_score), held)
    assert outcome.verdict is Verdict.VALID, outcome
    return list_of_dict_to_tensordict([fields for _, fields, _ in rows_of(held)])


@pytest.mark.slow
@pytest.mark.parametrize("by_process", [True, False])
@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{type(number).__module__}.{type(number).__name__}")
async def test_every_kind_of_number_is_a_score_and_a_metric(number: Any, by_process: bool) -> None:
    returned = [{"score": number, "acc": number}, *[{"score": 0, "acc": 0}] * 3]
    rows = await is_stored(group(), returned, by_process=by_process)
    assert sorted(scores[-1].item() for scores in rows["rm_scores"].unbind()) == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("score", ["0.5", b"0.5", [0.5], np.array([0.5]), 1e300, 10**400, 1j, {"a": 1}, object()])
async def test_what_is_no_number_or_too_large_a_one_is_refused_with_the_function_s_name(score: Any) -> None:
    what = r"reward_not_finite: compute_score of reward\.py returns score="
    with pytest.raises(TrajectoryFailed, match=what) as failed:
        await scorer(ScriptedReward(score), metric=None).score([output()], {}, RECORDER)
    assert failed.value.cause.summary.endswith("which is no finite number")


class Broken:
    def __repr__(self) -> str:
        raise ValueError("no text")

    def __float__(self) -> float:
        raise KeyError("no number")


def endless() -> list[Any]:
    itself: list[Any] = []
    itself.append(itself)
    return itself


NAMES = st.sampled_from(["acc_", "pred", "input", "uid", "a/b", "\udc80", 3, None, (1, 2)])
FIELDS = st.dictionaries(
    NAMES,
    st.recursive(
        st.one_of(
            st.none(),
            st.floats(),
            st.builds(Broken),
            st.integers(-(2**70), 2**70),
            st.text(st.characters(), max_size=3),
            st.sampled_from(["\ud800", b"\xff", endless(), object(), lambda: 0, datetime(2026, 1, 2), 10**400]),
            st.sampled_from([*NUMBERS, {1, 2}, 1j, np.ones(2), torch.ones(1, 2), np.array(["a", None]), {(1, 2): 3}]),
        ),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
        max_leaves=4,
    ),
    max_size=4,
)


@pytest.mark.slow
@costly()
@given(fields=st.lists(FIELDS, min_size=4, max_size=4), by_process=st.booleans())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # means of infinite fields
def test_whatever_fields_come_beside_the_score_no_group_is_lost_and_validation_can_show_them(
    fields, by_process
) -> None:
    returned = [{"score": k % 2, "acc": k % 2} | more for k, more in enumerate(fields)]
    rows = simulate(is_stored(group(), returned, by_process=by_process))
    infos = [row["reward_extra_info"] for row in rows.get("extra_fields").tolist()]
    json.dumps(infos, ensure_ascii=False).encode()  # as verl writes them
    assert [sorted(info["acc"] for info in infos)] == [[0, 0, 1, 1]]
    names = {name for info in infos for name in info}
    averaged = fields_to_average({name: [info.get(name) for info in infos] for name in names})
    process_validation_metrics(["sums"] * 4, ["a"] * 4, averaged)


def test_a_field_with_verl_s_name_for_the_score_fails_the_call() -> None:
    what = r"^reward_error: compute_score of reward\.py returns `reward`, verl's name"
    with pytest.raises(TrajectoryFailed, match=what):
        simulate(scorer(ScriptedReward(metric="reward"), metric=None).score([output()], {}, RECORDER))


@pytest.mark.parametrize("extra_info", [None, {}, {"index": 7, "num_turns": 0}])
async def test_the_reward_function_is_told_the_turns_that_were_taken(extra_info: dict[str, Any] | None) -> None:
    told = []

    async def compute_score(outputs: list[AgentLoopOutput], sample: dict[str, Any]) -> None:
        told.append(sample["extra_info"])
        outputs[-1].reward_score = 1.0

    scored, sample = output(), {"extra_info": extra_info}
    scored.num_turns = 4
    await scorer(compute_score, metric=None).score([scored], sample, RECORDER)
    assert told == [(extra_info or {}) | {"num_turns": 4}]
    assert sample == {"extra_info": extra_info}, "the prompt stays as it is"
