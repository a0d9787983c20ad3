"""Rows that verl makes up, to fill a batch to whole mini-batches: none of them is a response of this run."""

from typing import Any

import pytest
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo import padding_utils
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from recipe.async_dapo import store
from recipe.async_dapo.calls import SampledTokens, append_tokens
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory, Turn
from recipe.async_dapo.rollout.packed_output import PackedOutput
from recipe.async_dapo.training.mixture import members_by_group

RESPONSE_IDS = [10, 11, 12, 13]


class Queue:
    """TransferQueue's calls on one batch, in this process."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def kv_batch_put(self, *, keys: list[str], partition_id: str, fields: TensorDict, tags: list[Any]) -> None:
        self.rows |= {key: dict(row.items()) for key, row in zip(keys, fields, strict=True)}

    def kv_batch_get(self, *, keys: list[str], partition_id: str, select_fields: list[str] | None = None) -> TensorDict:
        rows = [self.rows[key] for key in keys]
        return list_of_dict_to_tensordict([{name: row[name] for name in select_fields or row} for row in rows])


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    queue = Queue()
    monkeypatch.setattr(padding_utils, "tq", queue)
    return queue


def trajectory(session_id: int) -> Trajectory:
    turn = Turn(prompt_digest=b"", prompt_len_tok=1)
    append_tokens(turn, RESPONSE_IDS, [-0.5] * 4, [(0, 2), (1, 2)])
    loop_output = AgentLoopOutput(
        prompt_ids=[1],
        response_ids=RESPONSE_IDS,
        response_mask=[1] * 4,
        response_logprobs=[-0.5] * 4,
        reward_score=1.0,
        metrics=AgentLoopMetrics(),
    )
    packed = PackedOutput.pack(loop_output, SampledTokens([turn]))
    return Trajectory(session_id=session_id, turns=[turn], outputs=[packed])


def stored_batch(queue: Queue, *, trajectories: int) -> KVBatchMeta:
    group = PromptGroup(
        uid="a", prompt={}, drawn_at_step=1, trajectories=[trajectory(number) for number in range(trajectories)]
    )
    keys, fields, tags = zip(*store.rows_of(group), strict=True)
    queue.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(list(fields)), tags=tags)
    return KVBatchMeta(partition_id="train", keys=list(keys), tags=list(tags))


@pytest.mark.parametrize("trajectories", [1, 2, 7])
def test_given_a_batch_that_verl_has_filled_up_then_its_groups_hold_trajectories_alone(queue, trajectories):
    batch = stored_batch(queue, trajectories=trajectories)
    padded = padding_utils.upsample_batch_to_divisible_size(batch, 8, eos_token_id=0)
    assert len(padded) == 8
    assert members_by_group(padded) == {"a_0": list(range(trajectories))}
