"""The balance heuristic on 2 training ranks with dynamic batches, against a computation by hand.

The workers are verl's, with FSDP2. A broadcast stands for Ray's calls, a dictionary for TransferQueue.
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tensordict import NonTensorStack, TensorDict
from torch import Tensor
from torch.distributed.tensor import DTensor
from transfer_queue import KVBatchMeta
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.padding import response_from_nested

from recipe.async_dapo import store
from recipe.async_dapo.config import AsyncDAPOConfig
from recipe.async_dapo.training import balance_heuristic
from recipe.async_dapo.training.balance_heuristic import BalanceHeuristic
from recipe.async_dapo.weights.sender import AsyncDAPOActorRolloutRefWorker
from recipe.async_dapo.weights.snapshots import WeightSnapshots

from ..support.composed_runs import compose_run, valid_overrides, write_files
from ..support.weights_by_hand import WeighedRun, truncated

RANKS = 2
PROMPT_TOK = 5
SCORED_FIELDS = (
    "prompts", "responses", "input_ids", "position_ids", "response_mask", "loss_mask",
)  # fmt: skip
OVERRIDES = (
    "async_dapo.importance_sampling=balance",
    "actor_rollout_ref.model.use_remove_padding=False",
    "++actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.fsdp_config.dtype=float32",
    "++actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
    "actor_rollout_ref.actor.use_torch_compile=False",
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=64",  # two or three trajectories in a micro-batch
)
# Of a step: groups, of each the versions that sampled its members' tokens, and how many each.
GROUPS: dict[int, Sequence[Sequence[Sequence[tuple[int, int]]]]] = {
    1: [[[(0, 4)], [(0, 9)]]],
    2: [[[(0, 4), (1, 3)], [(1, 20)]]],
    3: [
        [[(0, 7), (1, 5), (2, 12)], [(0, 3)], [(1, 9), (2, 2)], [(2, 21)]],
        [[(2, 8)], [(2, 17)]],
        [[(1, 6)], [(1, 1), (2, 25)]],
    ],
}


class Rank:
    """One training rank; what the workers of a run do when rank 0 calls them."""

    def __init__(self, files: Path) -> None:
        self.config = compose_run([*valid_overrides(files), *OVERRIDES])
        self._worker = AsyncDAPOActorRolloutRefWorker(self.config.actor_rollout_ref, role="actor")
        ActorRolloutRefWorker.init_model(self._worker)
        self.module = self._worker.actor.engine.module

    def do(self, name: str, *args: Any) -> Any:
        if name == "begin_snapshots":  # the worker's would ask Ray for its node
            self._worker.snapshots = WeightSnapshots(self.module, self._worker.actor.engine._autocast_dtype)
            return []
        if name in ("compute_log_prob", "train", "save"):
            return getattr(self, f"_{name}")(*args)
        result = [None] * RANKS
        dist.all_gather_object(result, getattr(self._worker, name)(*args))
        return result

    def _compute_log_prob(self, rows: list[dict[str, Any]]) -> list[Tensor]:
        """Of every row, computed where verl's dispatch would send it."""
        share = len(rows) // RANKS
        own = rows[dist.get_rank() * share :][:share]
        packed = {  # as TransferQueue hands them out
            name: torch.nested.as_nested_tensor([row[name] for row in own], layout=torch.jagged)
            for name in SCORED_FIELDS
        }
        data = TensorDict(packed | {"multi_modal_inputs": NonTensorStack(*({} for _ in own))}, batch_size=[share])
        tu.assign_non_tensor(data, calculate_entropy=False, compute_loss=False, temperature=1.0)
        computed = self._worker.compute_log_prob(data)
        found = response_from_nested(computed["log_probs"], data["response_mask"])
        every: list[list[Tensor]] = [[] for _ in range(RANKS)]
        dist.all_gather_object(every, [row.float() for row in found.unbind()])
        return [row for part in every for row in part]

    def _save(self, folder: str) -> None:
        self._worker.save_checkpoint(folder, global_step=1)

    @torch.no_grad()
    def _train(self) -> dict[str, Tensor]:
        """Move the weights. Returns all of them."""
        generator = torch.Generator().manual_seed(dist.get_rank())
        for parameter in self.module.parameters():
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            local.add_(0.05 * torch.randn(local.shape, generator=generator))
        return {name: p.full_tensor() for name, p in self.module.named_parameters()}


class Workers:
    """verl's worker group: every call is made on both ranks."""

    world_size = RANKS

    def __init__(self, rank: Rank, table: "Table") -> None:
        self._rank, self._table = rank, table

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def compute_log_prob(self, batch: KVBatchMeta) -> None:
        rows = [self._table.rows[key] for key in batch.keys]
        sent = [{name: row[name] for name in SCORED_FIELDS} for row in rows]
        for row, log_probs in zip(rows, self._call("compute_log_prob", sent), strict=True):
            row["log_probs"] = log_probs

    def _call(self, *call: Any) -> Any:
        dist.broadcast_object_list([call], src=0)
        return self._rank.do(*call)


class Table:
    """`store`, as far as the balance heuristic reads it."""

    is_padding = staticmethod(store.is_padding)

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def read_fields(self, batch: KVBatchMeta, fields: list[str]) -> dict[str, list[Tensor]]:
        return {name: [self.rows[key][name] for key in batch.keys] for name in fields}

    def read_log_probs(self, batch: KVBatchMeta) -> list[Tensor]:
        return self.read_fields(batch, ["log_probs"])["log_probs"]


def make_rows(step: int, generator: torch.Generator) -> dict[str, dict[str, Any]]:
    rows = {}
    for g, group in enumerate(GROUPS[step]):
        for member, segments in enumerate(group):
            versions = torch.cat([torch.full((count,), version) for version, count in segments])
            input_ids = torch.randint(3, 12, (PROMPT_TOK + len(versions),), generator=generator)
            rows[f"s{step}g{g}_{member}_0"] = {
                "prompts": input_ids[:PROMPT_TOK],
                "responses": input_ids[PROMPT_TOK:],
                "input_ids": input_ids,
                "position_ids": torch.arange(len(input_ids)),
                "response_mask": torch.ones_like(versions),
                "loss_mask": torch.ones_like(versions),
                "policy_versions": versions,
            }
    return rows


def joined(rank: int, files: str) -> Rank:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "DIST_INIT_METHOD": f"file://{files}/meeting"}
    os.environ |= {"MASTER_ADDR": "unused", "MASTER_PORT": "0"}
    return Rank(Path(files))


def check_rank(rank: int, files: str) -> None:
    own = joined(rank, files)
    if rank == 0:
        check_weights(own, Path(files))
        dist.broadcast_object_list([("end",)], src=0)
    else:
        call: list[Any] = [None]
        while call[0] != ("end",):
            dist.broadcast_object_list(call, src=0)
            if call[0] != ("end",):
                own.do(*call[0])
    dist.destroy_process_group()


def check_weights(own: Rank, files: Path) -> None:
    table, generator = Table(), torch.Generator().manual_seed(0)
    balance_heuristic.store = table
    workers, by_hand = Workers(own, table), WeighedRun(files)
    heuristic = BalanceHeuristic(workers, own.config, AsyncDAPOConfig.from_hydra(own.config))
    moved: list[float] = []
    for step in GROUPS:
        by_hand.models[step - 1] = reference_model(files, workers.train())
        table.rows = make_rows(step, generator)
        for row in table.rows.values():
            row["rollout_log_probs"] = recorded(by_hand, row, generator)
        batch = KVBatchMeta(partition_id="train", keys=list(table.rows), tags=[{} for _ in table.rows])
        workers.compute_log_prob(batch)
        for row in table.rows.values():
            row["old_log_probs"] = row["log_probs"]
        metrics: dict[str, float] = {}
        sampled_by = heuristic.log_probs(batch, step=step, metrics=metrics)
        moved += compare(by_hand, table.rows, sampled_by, newest=step - 1)
    assert metrics["async_dapo/mixture/scored_trajectories"] == 4 + 4 + 2  # by version 0; by version 1, of two groups
    assert max(moved) > 0.01, "the mixture is what sampled the tokens: the test shows nothing"


def compare(
    by_hand: WeighedRun, rows: dict[str, dict[str, Any]], sampled_by: list[Tensor], *, newest: int
) -> list[float]:
    """Weights beside those computed by hand. Returns how far each is from `decoupled`."""
    moved: list[float] = []
    mixtures = dict(zip(rows, sampled_by, strict=True))
    for name in {key.split("_")[0] for key in rows}:
        keys = [key for key in rows if key.startswith(f"{name}_")]
        group = [rows[key] for key in keys]
        pairs = zip(by_hand.weights(group, newest), by_hand.decoupled(group, newest), strict=True)
        for key, (expected, decoupled) in zip(keys, pairs, strict=True):
            own = truncated(rows[key]["old_log_probs"].tolist(), mixtures[key].tolist())
            assert own == pytest.approx(expected, rel=1e-3)
            moved += [abs(a - b) for a, b in zip(own, decoupled, strict=True)]
    return moved


def reference_model(files: Path, weights: dict[str, Tensor]) -> Any:
    """transformers' own, with these weights."""
    model = AutoModelForCausalLM.from_pretrained(files / "model").float().eval()
    model.load_state_dict(weights, strict=False)  # a tied weight has one name
    return model


def recorded(by_hand: WeighedRun, row: dict[str, Any], generator: torch.Generator) -> Tensor:
    """What an engine that differs a little from the trainer would have recorded."""
    versions = row["policy_versions"].tolist()
    of_version = {version: by_hand.log_probs(row, version) for version in set(versions)}
    exact = torch.tensor([of_version[version][t] for t, version in enumerate(versions)])
    return (exact - 0.01 * torch.rand(len(exact), generator=generator)).clamp(max=0.0)


@pytest.mark.nightly  # on the real stack: `test_dying_engines.py`, `test_partial_rollout.py`
def test_given_two_ranks_and_dynamic_batches_when_groups_mix_three_versions_then_weights_are_those_by_hand(tmp_path):
    write_files(tmp_path)
    torch.multiprocessing.spawn(check_rank, args=(str(tmp_path),), nprocs=RANKS)
