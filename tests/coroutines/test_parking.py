"""Tokens stay where they were generated; the pool and the coordinator see their numbers only."""

import asyncio
from array import array
from types import SimpleNamespace

import pytest
from ray.exceptions import GetTimeoutError, OwnerDiedError, RayError, RayTaskError

from recipe.async_dapo.config.values import RolloutStrategy
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import PromptGroup, Segment, Trajectory, Turn
from recipe.async_dapo.rollout import parking
from recipe.async_dapo.training.checkpoints import from_frames, to_frames

from ..support.object_store import StoredObject
from ..support.simulated_options import options
from ..support.simulated_worker import Task

LENGTH_TOK = 5000


@pytest.fixture(autouse=True)
def _object_store(monkeypatch) -> None:
    monkeypatch.setattr(parking, "ray", SimpleNamespace(put=StoredObject, get=StoredObject.load))


def interrupted_group() -> PromptGroup:
    """One finished trajectory, one that was interrupted, one that has not started."""
    segment = Segment(
        policy_version=3, token_ids=array("i", range(LENGTH_TOK)), rollout_log_probs=array("f", [-0.5]) * LENGTH_TOK
    )
    turn = Turn(prompt_digest=b"p", prompt_len_tok=2, segments=[segment])
    finished = Trajectory(session_id=0, outputs=["all that the loop returned"], finished_stamps=((3, 7),))
    trajectories = [finished, Trajectory(session_id=1, turns=[turn]), Trajectory(session_id=2)]
    return PromptGroup(uid="group", prompt={"index": 0}, drawn_at_step=1, trajectories=trajectories)


def segments_of(trajectory: Trajectory) -> list[Segment]:
    return [segment for turn in trajectory.turns for segment in turn.segments]


def test_given_a_parked_group_then_all_that_the_pool_decides_by_is_still_there() -> None:
    whole, group = interrupted_group(), interrupted_group()
    parking.park(group)
    for name in ("age", "generated_tok", "has_started"):
        assert getattr(group, name) == getattr(whole, name)
    assert group.versions() == whole.versions()
    assert [one.session_id for one in group.unfinished] == [1, 2]
    assert [one.stamps for one in group.trajectories] == [one.stamps for one in whole.trajectories]
    assert parking.with_tokens(group) == whole


def test_given_changes_in_the_pool_when_a_lane_opens_the_ticket_then_the_group_has_them() -> None:
    group = interrupted_group()
    parking.park(group)
    group.trajectories[1].age = 4
    taken = asyncio.run(parking.unpark(parking.ticket_of(group)))
    expected = interrupted_group()
    expected.trajectories[1].age = 4
    assert taken == expected
    assert parking.with_tokens(group) == expected


def test_given_a_ticket_then_it_carries_no_tokens_whether_a_worker_or_a_checkpoint_gave_the_group() -> None:
    parked = interrupted_group()
    parking.park(parked)
    for group in (parked, interrupted_group()):
        ticket = parking.ticket_of(group)
        assert not isinstance(ticket.content, bytes)
        assert ticket.unfinished == 2


def test_given_a_fresh_group_when_it_is_large_then_its_ticket_holds_a_reference():
    """As one with pictures is."""
    small, large = (
        PromptGroup(uid="group", prompt={"text": "x" * size}, drawn_at_step=1, trajectories=[Trajectory(session_id=0)])
        for size in (1, parking.MOST_SENT_BYTES)
    )
    assert isinstance(parking.ticket_of(small).content, bytes)
    assert isinstance(parking.ticket_of(large).content, StoredObject)
    for group in (small, large):
        assert asyncio.run(parking.unpark(parking.ticket_of(group))) == group and group.parked is None


class Noted:
    """A part of a prompt that counts how often it is pickled."""

    pickled = 0

    def __reduce__(self) -> tuple[type, tuple[()]]:
        Noted.pickled += 1
        return Noted, ()


@pytest.mark.parametrize("size", [1, parking.MOST_SENT_BYTES])
def test_given_a_fresh_group_of_any_size_then_it_is_pickled_once(monkeypatch, size: int) -> None:
    monkeypatch.setattr(Noted, "pickled", 0)
    prompt = {"text": "x" * size, "noted": Noted()}
    parking.ticket_of(PromptGroup(uid="group", prompt=prompt, drawn_at_step=1, trajectories=[Trajectory(session_id=0)]))
    assert Noted.pickled == 1


def test_given_a_node_that_does_not_send_the_tokens_when_a_checkpoint_wants_them_then_it_says_so(monkeypatch) -> None:
    def get(reference: StoredObject, timeout: float) -> None:
        assert 0 < timeout < 3600
        raise GetTimeoutError

    group = interrupted_group()
    parking.park(group)
    monkeypatch.setattr(parking, "ray", SimpleNamespace(get=get))
    with pytest.raises(TimeoutError, match="tokens of prompt group group have not come from the object store"):
        parking.with_tokens(group)


FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OwnerDiedError("1f", "2e", "3d"), "worker died, and with it the tokens of prompt group group"),
        (
            RayTaskError("park", "a traceback", FULL, proctitle="a worker", pid=1, ip="node").as_instanceof_cause(),
            r"the tokens of prompt group group could not be parked: OSError\(28, 'No space left on device'\)",
        ),
    ],
    ids=["a death", "an error"],
)
def test_given_tokens_that_are_not_there_when_they_are_wanted_then_the_reason_is_told(
    monkeypatch, error: RayError, said: str
) -> None:
    class Lost(StoredObject):
        def __await__(self):
            raise error
            yield

        def load(self, timeout=None):
            raise error

    monkeypatch.setattr(parking, "ray", SimpleNamespace(put=Lost, get=Lost.load))
    group = interrupted_group()
    parking.park(group)
    with pytest.raises(parking.TokensLost, match=said):
        parking.with_tokens(group)
    with pytest.raises(parking.TokensLost, match=said):
        asyncio.run(parking.unpark(parking.ticket_of(group)))


def test_given_workers_that_park_slowly_when_a_round_ends_then_only_those_wait_who_want_the_tokens(start) -> None:
    slow = {"park": 50.0}
    cluster = start(
        options(rollout_strategy=RolloutStrategy.PARTIAL, stop_rule=StopRuleName.FIRST_COMPLETED),
        task=Task(length_of=lambda prompt_ids: 5 + 40 * (prompt_ids[0] % 2)),
        latency_s=lambda method: slow.get(method, 0.01),
    )
    began_s = cluster.loop.time()
    cluster.sample()
    assert cluster.loop.time() < began_s + 50 and cluster.buffer.pool.buffered
    cluster.update_weights()
    assert cluster.loop.time() < began_s + 50
    saved = from_frames(list(to_frames(cluster.buffer.state())))
    assert cluster.loop.time() > began_s + 50
    kept = [segment for group in saved.pool.buffered for one in group.trajectories for segment in segments_of(one)]
    assert kept and all(isinstance(segment.token_ids, array) for segment in kept)
    slow.clear()
    cluster.steps(3)


def test_given_a_worker_that_dies_while_it_parks_then_its_groups_are_not_lost_silently(start) -> None:
    slow = {"park": 50.0}
    cluster = start(
        options(rollout_strategy=RolloutStrategy.PARTIAL, stop_rule=StopRuleName.FIRST_COMPLETED, num_workers=1),
        task=Task(length_of=lambda prompt_ids: 5 + 40 * (prompt_ids[0] % 2)),
        latency_s=lambda method: slow.get(method, 0.01),
    )
    cluster.sample()
    cluster.worker_handles[0].kill()
    with pytest.raises(parking.TokensLost, match="worker died, and with it the tokens of prompt group"):
        list(to_frames(cluster.buffer.state()))


def test_given_a_parked_group_when_it_starts_anew_then_nothing_of_it_is_kept() -> None:
    group = interrupted_group()
    parking.park(group)
    assert group.restart() == LENGTH_TOK + 7
    assert group.parked is None and not group.has_started


def test_given_rounds_that_are_interrupted_then_the_trainer_holds_counts_and_no_tokens(start) -> None:
    task = Task(length_of=lambda prompt_ids: 5 + 40 * (prompt_ids[0] % 2))
    cluster = start(
        options(rollout_strategy=RolloutStrategy.PARTIAL, stop_rule=StopRuleName.FIRST_COMPLETED), task=task
    )
    seen = 0
    for _ in range(4):
        cluster.step()
        held = [one for group in cluster.buffer.pool.buffered for one in group.trajectories]
        segments = [segment for trajectory in held for segment in segments_of(trajectory)]
        assert all(isinstance(segment.token_ids, range) for segment in segments)
        seen += len(segments)
    assert seen
