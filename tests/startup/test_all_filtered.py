"""When no group is ever valid, a step ends with an error after `max_num_gen_batches` batches."""

from collections.abc import Sequence
from uuid import uuid4

import pytest
from omegaconf import DictConfig

from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.core.outcome import EndedGroups
from recipe.async_dapo.core.over_sampling import AtHand
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.rollout.coordinator import RoundEvent
from recipe.async_dapo.training.replay_buffer import RoundReplayBuffer


class InsatiableManager:
    """A manager whose rounds never have enough valid groups."""

    def __init__(self) -> None:
        self.events = 0
        self.ended = EndedGroups(
            filtered=7, failed={"generation_error": 2}, scored_trajectories=30, failed_trajectories=2
        )

    def open_round(self, *args: object, **kwargs: object) -> None: ...

    def add_groups(self, groups: Sequence[PromptGroup]) -> None: ...

    def abandon(self, attachments: Sequence[object]) -> None: ...

    capacity = 64

    def open_engines(self, concurrency_state: object = None) -> None: ...

    def ask(self, question: str) -> AtHand | EndedGroups:
        return {"at_hand": AtHand(certain=0, open=0), "count_ended": self.ended}[question]

    def next_event(self) -> RoundEvent:
        self.events += 1
        assert self.events < 100, "the step does not end"
        return RoundEvent.NEEDS_PROMPTS


def fresh_group() -> PromptGroup:
    trajectories = [Trajectory(session_id=i) for i in range(4)]
    return PromptGroup(uid=uuid4().hex, prompt={}, drawn_at_step=1, trajectories=trajectories)


def refused_step(
    config: DictConfig, manager: InsatiableManager, *, valid_shares: Sequence[float] = ()
) -> tuple[str, list[int]]:
    """What a step of 8 groups ends with, and how many prompts were drawn at a time."""
    drawn: list[int] = []

    def draw(count: int) -> list[PromptGroup]:
        drawn.append(count)
        return [fresh_group() for _ in range(count)]

    buffer = RoundReplayBuffer(AsyncDAPOConfig.from_hydra(config), draw)
    buffer.attach(manager)
    for share in valid_shares:
        buffer._over_sampling.observe(share)
    buffer.open_round(1)
    with pytest.raises(ConfigError) as refused:
        buffer.sample(global_steps=1, partition_id="train", batch_size=8)
    return str(refused.value), drawn


def test_given_a_cap_on_old_tokens_when_groups_are_filtered_then_no_more_are_drawn_than_it_lets_run(run) -> None:
    config = run(
        "algorithm.filter_groups.max_num_gen_batches=2",
        "async_dapo.over_sampling_batch_size=12",
        "async_dapo.max_partial_share=0.2",
    )
    message, drawn = refused_step(config, InsatiableManager(), valid_shares=[0.5] * 3)  # 12 groups, then 10, 9, 8
    assert "max_num_gen_batches=2" in message and drawn == [8] + [1] * 12


@pytest.mark.parametrize("limit", [1, 3])
def test_given_only_filtered_groups_when_the_limit_is_reached_then_the_step_ends_with_an_error(run, limit):
    config = run(f"algorithm.filter_groups.max_num_gen_batches={limit}", "async_dapo.over_sampling_batch_size=12")
    message, drawn = refused_step(config, InsatiableManager())
    assert drawn == [12] * limit
    assert message.startswith(f"algorithm.filter_groups.max_num_gen_batches={limit}: drew {limit} batches")
    assert "fewer than 8 valid groups; groups ended as 7 filtered, 2 generation_error: the task is" in message


def test_given_groups_that_mostly_fail_when_the_limit_is_reached_then_the_reward_is_blamed_and_not_the_data(run):
    manager = InsatiableManager()
    manager.ended = EndedGroups(
        filtered=7, failed={"reward_timeout": 20, "reward_error": 1}, scored_trajectories=200, failed_trajectories=21
    )
    config = run("algorithm.filter_groups.max_num_gen_batches=1")
    message, _ = refused_step(config, manager)
    path = config.reward.custom_reward_function.path
    assert f"compute_score of {path}, gave no answer within async_dapo.reward.timeout_s=60.0" in message
    assert "data" not in message
