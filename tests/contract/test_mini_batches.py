"""The cut of a step into updates, beside verl's own, with verl's functions."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.seqlen_balancing import calculate_workload

from recipe.async_dapo.training.trainer import AsyncDAPOTrainer
from recipe.async_dapo_lab.plan.systems import waiting_at_updates

from ..support.imbalance import imbalance

N = 16


def trainer_of(ranks: int, prompts: int, *, shuffle: bool = False) -> Any:
    trainer: Any = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
    actor = {"ppo_mini_batch_size": prompts, "shuffle": shuffle}
    node = {"actor_rollout_ref": {"actor": actor, "rollout": {"n": N}}, "trainer": {"critic_warmup": 0}}
    trainer.config, trainer.use_critic, trainer.global_steps = OmegaConf.create(node), False, 1
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


def imbalance_of(balance: Any, trainer: Any, ranks: int, prompts: int, seed: int) -> list[float]:
    batch = balance(trainer, batch_of(4 * prompts, seed), {})
    work = calculate_workload(np.array([tag["seq_len"] for tag in batch.tags])).tolist()
    return imbalance(range(len(work)), work, ranks=ranks, rows=prompts * N)


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
    trainer = trainer_of(ranks := 16, 8)
    trainer.config.trainer.critic_warmup, trainer.use_critic = 2, True
    trainer.config.critic = {"ppo_mini_batch_size": 1}
    batch = AsyncDAPOTrainer._balance_batch(trainer, batch_of(ranks + 1, 0), {})
    assert batch.keys == PPOTrainer._balance_batch(trainer, batch_of(ranks + 1, 0), {}).keys


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
