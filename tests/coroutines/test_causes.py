"""What a trajectory failed of: the user's file and line, once in the log, and in the error that ends training."""

from typing import Any

import pytest
from aiohttp import ClientResponseError, RequestInfo
from multidict import CIMultiDict, CIMultiDictProxy
from ray.exceptions import RayTaskError
from yarl import URL

from recipe.async_dapo.core.failures import EndedGroups
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.users_errors import Cause
from recipe.async_dapo.rollout import coordinator as coordinator_module
from recipe.async_dapo.rollout.coordinator import EarlyStoppingCoordinator
from recipe.async_dapo.rollout.reward import cause_of
from recipe.async_dapo.training.too_few_groups import too_many_failures

from ..support.rollout_world import outcome_of, rollout, scores
from ..support.rounds import spec, tickets
from ..support.simulated_options import options
from ..support.simulation import simulate


def test_an_engines_error_is_told_with_its_traceback() -> None:
    """As Ray raises it: an instance of the error's own class."""
    remote = RayTaskError("generate", "Traceback ...\n  in generate\n", ValueError("too long")).as_instanceof_cause()
    cause = cause_of(remote)
    assert cause.summary == "ValueError: too long" and "in generate" in cause.traceback


def test_an_agent_loops_error_is_told_with_its_line() -> None:
    async def refuses(*_: Any) -> Any:
        raise KeyError("refused")

    outcome = simulate(outcome_of(rollout(loop=refuses, compute_score=scores(1))))
    assert outcome.cause is not None
    assert outcome.cause.summary.startswith("KeyError('refused') at test_causes.py:")
    assert outcome.cause.traceback.endswith("KeyError: 'refused'")


def test_an_http_clients_error_is_told_without_its_headers() -> None:
    headers = CIMultiDictProxy(CIMultiDict({f"header-{number}": "value" for number in range(20)}))
    asked = RequestInfo(url := URL("http://127.0.0.1:1/look_up?page=1"), "GET", headers, url)
    error = ClientResponseError(asked, (), status=503, message="the index\nis not loaded", headers=headers)
    assert "header-" in repr(error)
    assert cause_of(error).summary == " ".join(f"ClientResponseError: {error}".split())


def failed(uid: str, cause: Cause) -> GroupOutcome:
    return GroupOutcome(prompt_uid=uid, verdict=Verdict.FAILED, reason="reward_error", cause=cause, failed=1)


async def test_each_place_is_told_once_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(coordinator_module.logger, "warning", lambda text, *values: told.append(text % values))
    places = [
        'Traceback\n  File "reward.py", line 3\nKeyError: 1',
        'Traceback\n  File "reward.py", line 9\nKeyError: 1',
    ]

    coordinator = EarlyStoppingCoordinator(None)
    for step in (1, 2):
        opened = spec(f"step-{step}", target_valid_groups=9)
        uids = [f"{step}-{k}" for k in range(4)]
        await coordinator.open_round(opened, tickets(*uids))
        for k, uid in enumerate(uids):
            await coordinator.take_group(opened.round_id, 0)
            cause = Cause(f"KeyError({uid})", places[k % 2])
            await coordinator.report_completion(opened.round_id, failed(uid, cause))
    assert len(told) == 2 and all(place in text for place, text in zip(places, told, strict=True))


def test_the_error_that_ends_training_says_what_most_groups_failed_of() -> None:
    ended = EndedGroups(
        failed={"reward_error": 9, "reward_timeout": 1},
        causes={("reward_error", "KeyError('a') at reward.py:3"): 7, ("reward_error", "other"): 2, ("late", "x"): 8},
        failed_trajectories=10,
    )
    assert "compute_score of reward.py, raised" in str(too_many_failures(ended, options()))
    assert "KeyError('a') at reward.py:3; correct it" in str(too_many_failures(ended, options()))
