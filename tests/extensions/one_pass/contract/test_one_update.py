"""One pass over the batch, on verl's FSDP worker (CPU, float32): the parameters after a step of Adam are bitwise those
of two passes, or under bypass those of verl's own update, and so are the metrics that both tell.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

from recipe.async_dapo.extensions.one_pass import one_update
from recipe.async_dapo.training.importance_sampling import importance_metrics, importance_sums

from ....support.composed_runs import compose_run, valid_overrides, write_files
from ....support.ranks import nested, run_ranks
from ....support.training_rank import ACTOR, BYPASS, MODEL, NEWEST, OVERRIDES, PACKED, PADDED, Rank, make_batch

TOKENS = ("response_mask", "old_log_probs", "rollout_log_probs", "policy_versions")
DYNAMIC = (
    f"{ACTOR}use_dynamic_bsz=True",
    f"{ACTOR}ppo_max_token_len_per_gpu=64",  # two or three trajectories in a micro-batch
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=64",
)
VARIANTS: dict[str, tuple[str, ...]] = {
    "packed": (PACKED,),
    "padded, by sequence": (PADDED, f"{ACTOR}loss_agg_mode=seq-mean-token-mean"),
    "dynamic, exact entropy": (PACKED, *DYNAMIC, f"{ACTOR}calculate_entropy=True"),
    "LoRA, unweighted": (
        PADDED,
        f"{MODEL}lora_rank=4",
        f"{MODEL}lora_alpha=8",
        "algorithm.rollout_correction.rollout_is=null",
    ),
    "bypass": BYPASS,
}


def with_weights(data: TensorDict, proximal: Tensor, config: DictConfig) -> TensorDict:
    """What the trainer leaves for the update after a pass of log-probs, or under bypass."""
    data, correction = data.clone(recurse=False), config.algorithm.rollout_correction
    data["old_log_probs"] = data["rollout_log_probs"] if correction.bypass_mode else proximal
    mask = data["response_mask"].to_padded_tensor(0)
    if correction.rollout_is is not None and not correction.bypass_mode:
        log_ratio_BT = proximal.to_padded_tensor(0.0) - data["rollout_log_probs"].to_padded_tensor(0.0)
        weights_BT, _ = compute_rollout_correction_weights(log_ratio_BT, mask, rollout_is_threshold=2.0)
        lens = data["responses"].offsets().diff().tolist()
        data["rollout_is_weights"] = nested([row[:n] for row, n in zip(weights_BT, lens, strict=True)])
    return data


def expected_metrics(tokens: dict[str, Tensor], config: DictConfig) -> dict[str, float]:
    """Of the tokens of all ranks, whose log-probs had a pass of their own."""
    mask_N, proximal_N = tokens["response_mask"], tokens["old_log_probs"]
    log_ratio_N = proximal_N - tokens["rollout_log_probs"]
    metrics = importance_metrics(importance_sums(log_ratio_N, tokens["policy_versions"] >= NEWEST, mask_N))
    weights_N = log_ratio_N.exp().clamp(max=2.0)
    means, correction = {}, config.algorithm.rollout_correction
    if correction.rollout_is is not None and not correction.bypass_mode:
        means["rollout_corr/rollout_is_mean"] = weights_N
        means["rollout_corr/rollout_is_ratio_fraction_high"] = weights_N == 2.0
    if config.actor_rollout_ref.actor.loss_agg_mode == "token-mean":
        is_exact = config.actor_rollout_ref.actor.calculate_entropy
        means["actor/entropy"] = tokens["entropy"] if is_exact else -proximal_N * weights_N
    return metrics | {name: float((values_N * mask_N).sum() / mask_N.sum()) for name, values_N in means.items()}


def of_all_ranks(own: dict[str, Tensor]) -> dict[str, Tensor]:
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return {name: torch.cat([tokens[name] for tokens in every]) for name in own}


def check_variant(config: DictConfig) -> None:
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    two, one = Rank(config), Rank(config, one_update.around(partial(ppo_loss, actor), actor))
    data, bypasses = make_batch(seed=1 + dist.get_rank()), config.algorithm.rollout_correction.bypass_mode
    before = two.parameters()
    proximal, entropy = two.log_probs(data)
    complete = with_weights(data, proximal, config)
    expected, metrics = two.update(complete)
    assert max(float((a - b).abs().max()) for a, b in zip(expected, before, strict=True)) > 1e-3
    given = complete if bypasses else data
    found, own_metrics = one.update(given, **{one_update.FIELD: one_update.loss_context(config, newest=NEWEST)})
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    own_metrics |= one_update.step_metrics(own_metrics)
    tokens = {name: complete[name].values() for name in TOKENS}
    tokens |= {"old_log_probs": proximal.values(), "entropy": entropy.values()}
    metrics |= expected_metrics(of_all_ranks(tokens), config)
    if config.actor_rollout_ref.actor.loss_agg_mode != "token-mean":
        del own_metrics["actor/entropy"]
    assert own_metrics == pytest.approx(metrics, rel=1e-5)


def check_rank(files: Path) -> None:
    for overrides in VARIANTS.values():
        gpus = f"trainer.n_gpus_per_node={os.environ['WORLD_SIZE']}"
        check_variant(compose_run([*valid_overrides(files), *OVERRIDES, gpus, *overrides]))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_given_one_pass_when_a_step_is_trained_then_parameters_and_metrics_are_those_of_two(tmp_path, ranks):
    write_files(tmp_path)
    run_ranks(check_rank, tmp_path, ranks=ranks)


def test_given_no_weights_when_their_threshold_is_a_band_then_its_upper_end_is_counted():
    correction = {"bypass_mode": False, "rollout_is": None, "rollout_is_threshold": "0.5_5.0"}
    config = OmegaConf.create({"algorithm": {"rollout_correction": correction}})
    assert one_update.loss_context(config, newest=1) == one_update.OneUpdate(
        bypasses=False, weighs=False, threshold=5.0, newest=1
    )
