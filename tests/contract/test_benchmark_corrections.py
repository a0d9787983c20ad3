"""The enumerated gradients of `benchmarks.corrections` are those of verl's own loss; its table is what they give."""

import csv

import pytest
import torch
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
from verl.workers.config import ActorConfig

from benchmarks.corrections import exact
from benchmarks.corrections.dapo_gradient import DECOUPLED, MIXTURE, TRUNCATION, group_gradients
from benchmarks.corrections.softmax_sequence_model import make_world

OUTCOMES = [(0, 3, 9), (14, 1, 2), (7, 7, 4), (10, 0, 13)]
CONFIG = ActorConfig(
    strategy="fsdp2",
    rollout_n=3,
    ppo_micro_batch_size_per_gpu=1,
    clip_ratio_low=0.2,
    clip_ratio_high=0.28,
    clip_ratio_c=10.0,
)


@pytest.mark.parametrize("correction", ["none", "bypass", "decoupled"])
def test_a_group_s_gradient_is_that_of_verl_s_loss(correction: str) -> None:
    world = make_world(seed=3, drift=1.0, max_length=exact.LONGEST)
    mask_XT = world.model.mask_XT
    log_mu_XT = world.log_pi_JXT[0]
    log_ratio = (world.log_p_XT - log_mu_XT).expand(3, -1, -1)[:, :, None, None]
    gradients, valid = group_gradients(world, log_ratio, DECOUPLED[correction])
    compared = 0
    for outcome in OUTCOMES:
        if not valid[outcome]:
            continue
        rows = list(outcome)
        logits_PV = world.logits_JPV[-1].clone().requires_grad_()
        mask = mask_XT[rows]
        current = torch.where(mask, world.model.token_log_probs(logits_PV)[rows], 0.0)
        behaviour = torch.where(mask, log_mu_XT[rows], 0.0)
        rewards = world.reward_X[rows]
        advantages = ((rewards - rewards.mean()) / (rewards.std() + 1e-6))[:, None].expand_as(current)
        proximal = behaviour if correction == "bypass" else current.detach()
        weights = (current.detach() - behaviour).exp().clamp(max=TRUNCATION) if correction == "decoupled" else None
        loss, _ = compute_policy_loss_vanilla(
            proximal, current, advantages, mask.float(), config=CONFIG, rollout_is_weights=weights
        )
        (gradient,) = torch.autograd.grad(loss * mask.sum() / 3, logits_PV)
        torch.testing.assert_close(-gradient.flatten(), gradients[outcome], rtol=1e-6, atol=1e-9)
        compared += 1
    assert compared >= 2


@pytest.mark.slow
def test_the_table_is_what_the_model_gives() -> None:
    with (exact.FOLDER / "exact.csv").open(newline="") as file:
        rows = {(row["drift"], row["rollout"], row["correction"]): row for row in csv.DictReader(file)}
    assert len(rows) == len(exact.DRIFTS) * len(exact.ROLLOUTS) * len(DECOUPLED | MIXTURE)
    for expected in exact.sweep(exact.DRIFTS[-1]):
        shown = rows[f"{expected.drift:g}", expected.rollout, expected.correction]
        for name in ("kl_per_trajectory", "relative_bias", "variance_ratio", "error_ratio"):
            assert float(shown[name]) == pytest.approx(getattr(expected, name), rel=1e-3)
