"""The cut of a step into updates, beside verl's own, with verl's functions."""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo import padding_utils
from verl.trainer.ppo.core_algos import agg_loss
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from recipe.async_dapo import store
from recipe.async_dapo.extensions.mini_batches.trajectories import balanced_order
from recipe.async_dapo.training.step_updates import rows_of_updates, step_updates
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer
from recipe.async_dapo_lab.plan.systems import waiting_at_updates
from recipe.async_dapo_lab.quickstart.tiny_model import build_model, build_tokenizer

from ....support.queued_rows import QueuedRows
from ..support.imbalance import imbalance

N = 16


def trainer_of(ranks: int, prompts: int, *, shuffle: bool = False, critic: dict[str, Any] | None = None) -> Any:
    trainer: Any = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
    actor = {"ppo_mini_batch_size": prompts, "shuffle": shuffle, "use_dynamic_bsz": True}
    node = {"actor_rollout_ref": {"actor": actor, "rollout": {"n": N}}, "critic": critic}
    node |= {"trainer": {"critic_warmup": 0}, "data": {"train_batch_size": 4 * prompts}}
    trainer.config, trainer.use_critic, trainer.global_steps = OmegaConf.create(node), critic is not None, 1
    trainer._step_updates = step_updates(trainer.config, has_critic=trainer.use_critic)
    trainer.use_reference_policy = False
    trainer.tokenizer = SimpleNamespace(eos_token_id=0)
    trainer.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": list(range(ranks))})
    return trainer


def batch_of(groups: int, seed: int) -> KVBatchMeta:
    """Group by group, as verl and this recipe hand it out, with random names."""
    rng = np.random.default_rng(seed)
    lens_tok = np.minimum(rng.lognormal(8.3, 0.9, (groups, N)), 16_384).astype(int)
    names = [rng.bytes(8).hex() for _ in range(groups)]
    rows = [
        (f"{name}_{member}_0", int(n))
        for name, own in zip(names, lens_tok, strict=True)
        for member, n in enumerate(own)
    ]
    return KVBatchMeta(partition_id="train", keys=[key for key, _ in rows], tags=[{"seq_len": n} for _, n in rows])


def with_sub_agents(batch: KVBatchMeta, *, every: int) -> KVBatchMeta:
    """One of so many trajectories has another row."""
    keys = [f"{key.rpartition('_')[0]}_1" for key in batch.keys[::every]]
    tags = [{"seq_len": 1} for _ in keys]
    return KVBatchMeta(partition_id="train", keys=[*batch.keys, *keys], tags=[*batch.tags, *tags])


def imbalance_of(balance: Any, trainer: Any, ranks: int, prompts: int, seed: int) -> list[float]:
    batch = balance(trainer, batch_of(4 * prompts, seed), {})
    work = calculate_workload(np.array([tag["seq_len"] for tag in batch.tags])).tolist()
    return imbalance(range(len(work)), work, ranks=ranks, rows=prompts * N)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "prompts"), [(2, 2), (8, 8), (16, 4), (64, 32)])
@pytest.mark.parametrize("seed", range(3))
def test_the_updates_of_a_step_are_better_balanced_than_by_verl(ranks: int, prompts: int, seed: int) -> None:
    trainer = trainer_of(ranks, prompts)
    verls = imbalance_of(PPOTrainer._balance_batch, trainer, ranks, prompts, seed)
    own = imbalance_of(AsyncDAPOTrainer._balance_batch, trainer, ranks, prompts, seed)
    assert len(own) == len(verls) == 4
    assert max(own) <= max(verls) and sum(own) < sum(verls)


def test_one_update_and_a_shuffled_step_are_verl_s() -> None:
    for ranks, prompts, shuffle in ((8, 4, False), (8, 1, True)):
        trainer = trainer_of(ranks, prompts, shuffle=shuffle)
        both = [
            balance(trainer, batch_of(4, 0), {})
            for balance in (PPOTrainer._balance_batch, AsyncDAPOTrainer._balance_batch)
        ]
        assert both[0].keys == both[1].keys


def test_while_the_critic_warms_up_a_step_is_verl_s() -> None:
    """It is a multiple of the critic's mini-batch then, and of the actor's only by chance."""
    trainer = trainer_of(ranks := 16, 8, critic={"ppo_mini_batch_size": 1})
    trainer.config.trainer.critic_warmup = 2
    batch = AsyncDAPOTrainer._balance_batch(trainer, batch_of(ranks + 1, 0), {})
    assert batch.keys == PPOTrainer._balance_batch(trainer, batch_of(ranks + 1, 0), {}).keys


@pytest.mark.slow
@pytest.mark.parametrize("trainer", [PPOTrainer, AsyncDAPOTrainer])
@pytest.mark.parametrize(("ranks", "prompts"), [(8, 8), (16, 16), (64, 32)])
def test_the_planner_s_estimate_of_waiting_is_within_a_tenth(ranks: int, prompts: int, trainer: Any) -> None:
    seeds = range(4)
    real = [
        np.mean(imbalance_of(trainer._balance_batch, trainer_of(ranks, prompts), ranks, prompts, seed))
        for seed in seeds
    ]
    batches = [batch_of(4 * prompts, seed) for seed in seeds]
    work = [calculate_workload(np.array([tag["seq_len"] for tag in batch.tags])) for batch in batches]
    by_step = trainer is PPOTrainer
    estimates = [waiting_at_updates(own, ranks=ranks, updates=4, balances_steps=by_step) for own in work]
    assert np.mean(estimates) == pytest.approx(np.mean(real), rel=0.1)


def gradients(lens_tok: Sequence[int], order: Sequence[int], *, ranks: int, rows: int) -> list[torch.Tensor]:
    """Of each update of the same model, by verl's mean over tokens, and over ranks as FSDP takes it."""
    model, found = build_model(build_tokenizer(), seed=0), []
    for update in rows_of_updates(len(order), ranks=ranks, rows=rows):
        model.zero_grad()
        whole = sum(lens_tok[order[place]] for place in update)
        for rank in range(ranks):
            own = [order[place] for place in update[rank * rows // ranks :][: rows // ranks]]
            longest = max(lens_tok[row] for row in own)
            ids_BT = torch.stack([torch.arange(row, row + longest + 1) % 90 + 4 for row in own])
            mask_BT = torch.tensor([[1.0] * lens_tok[row] + [0.0] * (longest - lens_tok[row]) for row in own])
            log_probs_BTV = model(ids_BT[:, :-1]).logits.log_softmax(-1)
            advantages_B1 = torch.tensor([[row % 7 - 3.0] for row in own])
            loss_BT = -advantages_B1 * log_probs_BTV.gather(-1, ids_BT[:, 1:, None])[..., 0]
            loss = agg_loss(loss_BT, mask_BT, "token-mean", dp_size=ranks, batch_num_tokens=whole)
            (loss / ranks).backward()
        found.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    return found


def test_an_update_has_the_same_gradient_however_it_is_divided_over_the_ranks() -> None:
    """Up to the order of summation."""
    lens_tok = np.minimum(np.random.default_rng(0).lognormal(3, 1, 32), 200).astype(int).tolist()
    keys = [f"{row // 4}_{row % 4}_0" for row in range(len(lens_tok))]
    told: dict[str, Any] = {"padding": [False] * len(keys), "ranks": 2, "rows": 8}
    cuts = (
        partial(get_seqlen_balanced_partitions, equal_size=True),
        lambda work, parts: np.arange(len(work)).reshape(parts, -1),
    )
    balanced, in_turn = (balanced_order(keys, lens_tok, **told, partition=cut) for cut in cuts)
    most_balanced, most_in_turn = (max(imbalance(order, lens_tok, ranks=2, rows=8)) for order in (balanced, in_turn))
    assert most_balanced < 1.2 < most_in_turn
    pairs = zip(*(gradients(lens_tok, order, ranks=2, rows=8) for order in (balanced, in_turn)), strict=True)
    assert max(float((one - other).norm() / one.norm()) for one, other in pairs) < 1e-5


def filled(batch: KVBatchMeta, multiple: int, _: int) -> KVBatchMeta:
    """As verl does, without rows."""
    missing = -len(batch) % multiple
    keys = [*batch.keys, *(f"pad{number}_0_0" for number in range(missing))]
    tags = [*batch.tags, *[{"seq_len": 1, "is_padding": True}] * missing]
    return KVBatchMeta(partition_id="train", keys=keys, tags=tags)


@pytest.fixture
def has_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl.trainer.ppo.v1.trainer_base.upsample_batch_to_divisible_size", filled)
    monkeypatch.setattr(store, "complete_padding", lambda batch: None)


@pytest.mark.usefixtures("has_no_rows")
@pytest.mark.parametrize(("ranks", "prompts"), [(1, 4), (2, 2), (4, 1)])
def test_given_trajectories_of_several_rows_then_a_step_has_its_number_of_updates_and_little_padding(
    ranks: int, prompts: int
) -> None:
    """One of eight trajectories has a sub-agent: verl would fill 72 rows up to 128, and double updates."""
    trainer = trainer_of(ranks, prompts)
    for has_sub_agents in (True, False):  # the next step has one row a trajectory again
        batch = with_sub_agents(batch_of(4, 0), every=8) if has_sub_agents else batch_of(4, 0)
        rows = len(batch)
        batch = AsyncDAPOTrainer._balance_batch(trainer, batch, {})
        assert len(trainer._updates(len(batch))) == 4 // prompts
        assert len(batch) - rows < N * 4 // prompts


@pytest.mark.usefixtures("has_no_rows")
def test_given_micro_batches_of_a_fixed_size_then_a_rank_has_whole_ones_in_each_update() -> None:
    """verl ends the run otherwise."""
    trainer = trainer_of(ranks := 2, 2)
    policy = trainer.config.actor_rollout_ref
    policy.actor.update({"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 16})
    policy.rollout.log_prob_micro_batch_size_per_gpu, trainer.use_reference_policy = 8, True
    policy.ref = {"log_prob_use_dynamic_bsz": False, "log_prob_micro_batch_size_per_gpu": 32}
    batch = AsyncDAPOTrainer._balance_batch(trainer, with_sub_agents(batch_of(4, 0), every=8), {})
    updates = trainer._updates(len(batch))
    assert len(updates) == 2 and {len(update) // ranks % 32 for update in updates} == {0}


def test_padding_has_policy_versions_of_its_own_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl makes it of a row; an update that computes pi_prox itself counts tokens by their versions."""
    trainer, batch = trainer_of(2, 4), with_sub_agents(batch_of(4, 0), every=64)
    queue = QueuedRows({key: {"policy_versions": torch.ones(9), "uid": key} for key in batch.keys})
    for module in (padding_utils, store):
        monkeypatch.setattr(module, "tq", queue)
    batch = AsyncDAPOTrainer._balance_batch(trainer, batch, {})
    padding = [queue.rows[key] for key, tag in zip(batch.keys, batch.tags, strict=True) if store.is_padding(tag)]
    assert len(padding) == 80 - 65 and len(trainer._updates(len(batch))) == 1
    assert all(row["policy_versions"].tolist() == [-1] == [-len(row["response_mask"])] for row in padding)
