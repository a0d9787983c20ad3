"""What the lab keeps of a step's trajectories, of the rows as TransferQueue holds them."""

import pytest
import torch
from transfer_queue import KVBatchMeta

from recipe.async_dapo import store
from recipe.async_dapo.core.trajectory import Timed
from recipe.async_dapo.rollout.packed_output import TIMED
from recipe.async_dapo_lab.recorder import _episodes

from ....support.queued_rows import QueuedRows

REQUEST = Timed(server="a", asked_s=1.0, sent_s=2.0, over_s=4.0, tokens=2)


@pytest.mark.parametrize("count", [1, 3])
def test_given_a_group_s_rows_then_each_episode_has_the_requests_of_its_turns(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {
        f"uid_{number}_0": {
            "prompts": torch.tensor([1, 2]),
            "responses": torch.tensor([3, 4, 5]),
            "policy_versions": torch.tensor([0, 1, -1]),
            "rollout_log_probs": torch.tensor([-0.5, -0.25, 0.0]),
            "rm_scores": torch.tensor([0.0, 0.0, 1.0]),
            "extra_fields": {"age": 0} | ({TIMED: [[list(REQUEST)]]} if number != 1 else {}),
        }
        for number in range(count)
    }
    monkeypatch.setattr(store, "tq", QueuedRows(rows))
    tags = [{"seq_len": 5, "age": 0}] * count
    episodes = list(_episodes(7, KVBatchMeta(partition_id="train", keys=[*rows], tags=tags)))
    assert [one.uid for one in episodes] == [*rows] and {one.reward for one in episodes} == {1.0}
    assert {tuple(one.versions) for one in episodes} == {(0, 1, -1)}, "as each token was sampled"
    assert [one.timed for one in episodes] == [[[list(REQUEST)]] if number != 1 else [] for number in range(count)]
