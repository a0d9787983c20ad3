"""Advantages of a trajectory of several rows, as that of an agent with sub-agents, whose last row is rejected.

verl computes advantages of the last row of each trajectory, and gives every row that of its last one. It reads it at
the first token that is in the loss. Where `rollout_rs` has rejected all tokens of a last row it reads 0, and the other
rows, which are in the loss, would teach nothing.
"""

import numpy as np
import torch
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from ... import store
from .trajectories import trajectory_of


def restore(batch: KVBatchMeta, config: DictConfig) -> None:
    """Give rows in the loss the advantage that their trajectory has in its group."""
    if config.algorithm.adv_estimator != "grpo":  # others compute those of each row
        return
    rewards = "token_level_rewards" if config.algorithm.use_kl_in_reward else "rm_scores"
    data = store.read_fields(batch, ["response_mask", "advantages", rewards])
    own = [row for row, tag in enumerate(batch.tags) if not store.is_padding(tag)]
    last: dict[str, int] = {}  # by trajectory
    for row in sorted(own, key=lambda row: int(batch.keys[row].rpartition("_")[2])):
        last[trajectory_of(batch.keys[row])] = row
    rejected = {name for name, row in last.items() if not data["response_mask"][row].any()}
    lost = [row for row in own if trajectory_of(batch.keys[row]) in rejected and data["response_mask"][row].any()]
    if not lost:
        return
    scores_S = torch.stack([data[rewards][row].sum() for row in last.values()])
    advantages_S1, _ = compute_grpo_outcome_advantage(
        scores_S[:, None],
        torch.ones_like(scores_S)[:, None],
        index=np.array([trajectory_of(name) for name in last]),
        norm_adv_by_std_in_grpo=config.algorithm.norm_adv_by_std_in_grpo,
    )
    of_trajectory = dict(zip(last, advantages_S1[:, 0], strict=True))
    for row in lost:
        mask_T = data["response_mask"][row]
        data["advantages"][row] = of_trajectory[trajectory_of(batch.keys[row])] * mask_T
    for name in ("advantages", "returns"):
        store.write_field(batch, name, data["advantages"])
