"""One pass over the batch, on verl's FSDP worker (CPU, float32): the parameters after a step of Adam are bitwise those
of two passes, or under bypass those of verl's own update, and so are the metrics that both tell.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from omegaconf import DictConfig, OmegaConf
from tensordict import NonTensorStack, TensorDict
from torch import Tensor
from torch.distributed.tensor import DTensor
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.utils import tensordict_utils as tu
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.padding import response_from_nested

from recipe.async_dapo.record import keys
from recipe.async_dapo.training import one_update
from recipe.async_dapo.training.importance_sampling import importance_metrics, importance_sums
from recipe.async_dapo.training.metrics import update_metrics
from recipe.async_dapo.weights.sender import AsyncDAPOActorRolloutRefWorker

from ..support.composed_runs import CPU_WORKER, compose_run, valid_overrides, write_files
from ..support.ranks import nested, run_ranks

ROWS, PROMPT_TOK, NEWEST = 8, 5, 6
ACTOR, MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.model."
OVERRIDES = (
    "algorithm.rollout_correction.rollout_is=token",
    *CPU_WORKER,
)
TIMED = ("mfu", "_gb")
TOKENS = ("response_mask", "old_log_probs", "rollout_log_probs", "policy_versions")
PACKED, PADDED = f"{MODEL}use_remove_padding=True", f"{MODEL}use_remove_padding=False"
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
    "bypass": (
        PACKED,
        "algorithm.rollout_correction.bypass_mode=True",
        f"{ACTOR}policy_loss.loss_mode=dppo_kl",
        f"{ACTOR}clip_ratio_low=0.05",
        f"{ACTOR}clip_ratio_high=0.05",
    ),
}


def make_batch(seed: int) -> TensorDict:
    """Trajectories of three policy versions, up to 1.5 nats from the trainer; a micro-batch of two without a token."""
    torch.manual_seed(seed)
    lens = [int(length) for length in torch.randint(1, 25, (ROWS,))]
    rows: dict[str, list[Tensor]] = {name: [] for name in ("responses", "input_ids", "position_ids", "response_mask")}
    rows |= {name: [] for name in ("rollout_log_probs", "advantages", "policy_versions", "prompts")}
    for number, length in enumerate(lens):
        input_ids = torch.randint(3, 12, (PROMPT_TOK + length,))
        rows["prompts"].append(input_ids[:PROMPT_TOK])
        rows["responses"].append(input_ids[PROMPT_TOK:])
        rows["input_ids"].append(input_ids)
        rows["position_ids"].append(torch.arange(len(input_ids)))
        rows["response_mask"].append((torch.rand(length) < 0.8).long() * (number not in (2, 3)))
        rows["rollout_log_probs"].append(-2.7 + 3 * (torch.rand(length) - 0.5))
        rows["advantages"].append(torch.full((length,), float(torch.randn(()))))
        rows["policy_versions"].append(torch.randint(NEWEST - 2, NEWEST + 1, (length,), dtype=torch.int32))
    data = TensorDict({name: nested(values) for name, values in rows.items()}, batch_size=[ROWS])
    data["loss_mask"] = nested([mask.clone() for mask in rows["response_mask"]])
    data["multi_modal_inputs"] = NonTensorStack(*({} for _ in lens))
    return data


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


class Rank:
    """A training rank with a model of its own, seeded alike each time."""

    def __init__(self, config: DictConfig) -> None:
        torch.manual_seed(0)
        self.config, self.worker = config, AsyncDAPOActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
        ActorRolloutRefWorker.init_model(self.worker)
        self.worker.set_loss_fn(one_update.loss_of(config))

    def log_probs(self, data: TensorDict) -> tuple[Tensor, Tensor]:
        data = data.clone(recurse=False)
        tu.assign_non_tensor(data, calculate_entropy=True, compute_loss=False, temperature=1.0)
        found = self.worker.compute_log_prob(data)
        return tuple(response_from_nested(found[name], data["response_mask"]) for name in ("log_probs", "entropy"))

    def update(self, data: TensorDict, **told: Any) -> tuple[list[Tensor], dict[str, Any]]:
        """All trained parameters after it, and its metrics as the trainer has them."""
        data, rows = data.clone(recurse=False), len(data) * dist.get_world_size()
        exact = self.config.actor_rollout_ref.actor.calculate_entropy
        tu.assign_non_tensor(data, calculate_entropy=exact, temperature=1.0, epochs=1, seed=0, **told)
        tu.assign_non_tensor(data, global_batch_size=rows, mini_batch_size=rows, dataloader_kwargs={"shuffle": False})
        output = self.worker.update_actor(data)
        metrics = reduce_metrics(rename_dict(tu.get(output, "metrics"), "actor/"))
        return self.parameters(), {name: value for name, value in metrics.items() if not name.endswith(TIMED)}

    def parameters(self) -> list[Tensor]:
        trained = [p for p in self.worker.actor.engine.module.parameters() if p.requires_grad]
        return [(p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for p in trained]


def check_variant(config: DictConfig) -> None:
    two, one = Rank(config), Rank(config)
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


def check_left_out(files: Path) -> None:
    rank = Rank(compose_run([*valid_overrides(files), *OVERRIDES, "trainer.n_gpus_per_node=1", *VARIANTS["bypass"]]))
    before, data = rank.parameters(), with_weights(make_batch(seed=1), make_batch(seed=1), rank.config)
    context = {one_update.FIELD: one_update.loss_context(rank.config, newest=NEWEST)}
    data["advantages"] = nested([row * float("nan") for row in data["advantages"].unbind()])
    after, metrics = rank.update(data, **context)
    assert update_metrics(metrics) == {keys.SKIPPED_UPDATE: 1.0}
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    after, metrics = rank.update(with_weights(make_batch(seed=1), make_batch(seed=1), rank.config), **context)
    assert update_metrics(metrics) == {keys.SKIPPED_UPDATE: 0.0}
    assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.slow
def test_an_update_whose_gradient_is_not_finite_changes_nothing_and_is_counted(tmp_path):
    write_files(tmp_path)
    run_ranks(check_left_out, tmp_path, ranks=1)


def test_given_no_weights_when_their_threshold_is_a_band_then_its_upper_end_is_counted():
    correction = {"bypass_mode": False, "rollout_is": None, "rollout_is_threshold": "0.5_5.0"}
    config = OmegaConf.create({"algorithm": {"rollout_correction": correction}})
    assert one_update.loss_context(config, newest=1) == one_update.OneUpdate(
        bypasses=False, weighs=False, threshold=5.0, newest=1
    )
