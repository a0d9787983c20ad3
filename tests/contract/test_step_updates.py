"""Which rows of a batch are in each update, as verl cuts it."""

from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta

from recipe.async_dapo.training.step_updates import StepUpdates, rows_of_updates
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer


def config_of(*, prompts: int, n: int, shuffle: bool = False, critic: dict[str, Any] | None = None) -> Any:
    actor = {"ppo_mini_batch_size": prompts, "shuffle": shuffle}
    return OmegaConf.create({"actor_rollout_ref": {"actor": actor, "rollout": {"n": n}}, "critic": critic})


def test_rows_that_do_not_divide_a_batch_leave_a_smaller_last_mini_batch() -> None:
    """As while a critic warms up: the actor has no updates then."""
    assert rows_of_updates(10, ranks=2, rows=6) == [[0, 1, 2, 5, 6, 7], [3, 4, 8, 9]]


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_rank_cuts_its_part_and_if_ranks_shuffle_each_row_counts_as_an_update(shuffle: bool) -> None:
    updates = StepUpdates(config_of(prompts=2, n=2, shuffle=shuffle), has_critic=False)
    several = [[0, 1, 4, 5], [2, 3, 6, 7]] if not shuffle else [[row] for row in range(8)]
    assert updates.rows(8, ranks=2, of_policy=True) == several
    assert updates.rows(4, ranks=2, of_policy=True) == [[0, 1, 2, 3]], "one update has all rows, in whatever order"


def test_updates_of_a_critic_do_not_make_several_of_the_policy_s() -> None:
    """Its one update computes pi_prox itself, as the start has said, however often the critic is updated."""
    trainer: Any = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
    critic = {"ppo_mini_batch_size": 1, "shuffle": False}
    trainer._step_updates = StepUpdates(config_of(prompts=4, n=2, critic=critic), has_critic=True)
    trainer.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": [0, 1]})
    batch = KVBatchMeta(partition_id="train", keys=[f"{row}_0_0" for row in range(8)], tags=[{} for _ in range(8)])
    assert trainer._has_one_update(batch) and len(trainer._updates(len(batch))) == 4
