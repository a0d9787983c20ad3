"""Advantages of trajectories of several rows, by verl's own function, whose last rows are rejected."""

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl import DataProto
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from recipe.async_dapo import store
from recipe.async_dapo.extensions.mini_batches import row_advantages

from ....support.queued_rows import QueuedRows

SCORES = {"g_0": 1.0, "g_1": 0.0, "g_2": 0.5, "h_0": 0.0, "h_1": 3.0}
KEYS = ["g_0_0", "g_0_10", "g_0_2", "g_1_0", "g_2_0", "g_2_1", "h_0_0", "h_1_0", "h_1_1"]  # "10" is the last of its own


def advantages(masks: dict[str, list[int]], *, by_std: bool) -> dict[str, torch.Tensor]:
    """Of each row, as verl computes them; a row has three tokens."""
    scores = torch.zeros(len(KEYS), 3)
    scores[:, -1] = torch.tensor([SCORES[key.rpartition("_")[0]] for key in KEYS])
    mask = torch.tensor([masks.get(key, [1, 1, 1]) for key in KEYS])
    uids = np.array([key.split("_")[0] for key in KEYS], dtype=object)
    tensors = {"token_level_rewards": scores, "response_mask": mask, "rm_scores": scores}
    data = DataProto.from_dict(tensors=tensors, non_tensors={"uid": uids})
    found = compute_advantage_for_multi_trajectories(
        data, batch_keys=KEYS, adv_estimator="grpo", norm_adv_by_std_in_grpo=by_std
    )
    rows = zip(KEYS, found.batch["advantages"], found.batch["response_mask"], scores, strict=True)
    return {
        key: {"advantages": advantage, "returns": advantage, "response_mask": mask, "rm_scores": score}
        for key, advantage, mask, score in rows
    }


@pytest.mark.parametrize("by_std", [True, False])
def test_given_last_rows_that_are_rejected_then_the_others_have_the_advantage_of_their_trajectory(
    by_std: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rejected = {"g_0_10": [0, 0, 0], "h_1_1": [0, 0, 0], "h_1_0": [0, 0, 0], "g_2_0": [1, 0, 1]}
    expected, found = (advantages(masks, by_std=by_std) for masks in ({}, rejected))
    assert not found["g_0_0"]["advantages"].any(), "what verl makes of it"
    padding = {"pad_0_0": {**found["g_1_0"], "response_mask": torch.zeros(3, dtype=torch.long)}}
    queue = QueuedRows(found | padding)
    monkeypatch.setattr(store, "tq", queue)
    tags = [{"is_padding": key in padding} for key in queue.rows]
    batch = KVBatchMeta(partition_id="train", keys=[*queue.rows], tags=tags, fields=["advantages", "returns"])
    algorithm = {"adv_estimator": "grpo", "use_kl_in_reward": False, "norm_adv_by_std_in_grpo": by_std}
    row_advantages.restore(batch, OmegaConf.create({"algorithm": algorithm}))
    for key in KEYS:
        mask = torch.tensor(rejected.get(key, [1, 1, 1]))
        for name in ("advantages", "returns"):
            assert torch.allclose(queue.rows[key][name], expected[key]["advantages"] * mask), key
