"""One step of training on sampled trajectories: verl's advantages, corrections and losses, called as its V1 trainer and
this recipe's call them, on a tiny model.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from zlib import crc32

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor
from verl import DataProto
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config.optimizer import build_optimizer

from recipe.async_dapo.config.derived import wire_importance_sampling
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.values import ImportanceSampling
from recipe.async_dapo.core.staleness import StalenessLimit
from recipe.async_dapo.training.importance_sampling import ratio_statistics, ratio_sums
from recipe.async_dapo_lab.overrides import compose_overrides

from .model import TinyTransformer, padded
from .schedule import Sampled

_MICRO_TOK = 8192  # of a micro-batch, padding included

Batch = dict[str, Tensor]  # under verl's names; [B, T] over the responses, but for `prompts`


def compose_run(overrides: Sequence[str]) -> DictConfig:
    """The recipe's own configuration with these overrides, its correction wired as at a start."""
    config = compose_overrides(overrides)
    wire_importance_sampling(config, AsyncDAPOConfig.from_hydra(config).importance_sampling)
    return config


class Learner:
    """Updates a model as `actor_rollout_ref.actor`, `algorithm` and `async_dapo` of a configuration say."""

    def __init__(self, model: TinyTransformer, config: DictConfig) -> None:
        self.model = model
        self._algorithm = config.algorithm
        self._actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        self._staleness = StalenessLimit(max_staleness=config.async_dapo.max_staleness)
        self._mini_rows = self._actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
        self._loss = get_policy_loss_fn(self._actor.policy_loss.loss_mode)
        self._optimizer = build_optimizer(model.parameters(), self._actor.optim)
        self._mixes = config.async_dapo.importance_sampling == ImportanceSampling.MIXTURE
        self._weights: dict[int, dict[str, Tensor]] = {}  # by version, for mixtures

    def update(self, trained: Sequence[Sampled], *, step: int) -> dict[str, float]:
        """Train on a step's groups. Returns what a run measures of it.

        Which groups make a mini-batch goes by names, which say nothing of length or age, as in a run.
        """
        rows, measures = self.prepare(sorted(trained, key=lambda one: crc32(one.group.encode())), step=step)
        clipped, norms = [], []
        for first in range(0, len(trained), self._mini_rows):
            mini = slice(first, first + self._mini_rows)
            clipped.append(self.accumulate({name: values[mini] for name, values in rows.items()}))
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._actor.optim.clip_grad)
            if norm.isfinite():  # else verl's engines leave the update out, too
                self._optimizer.step()
                norms.append(float(norm))
            self._optimizer.zero_grad()
        means = {"clipped": np.mean(clipped), "gradient": np.mean(norms) if norms else np.nan}
        return measures | {name: float(value) for name, value in means.items()}

    def prepare(self, trained: Sequence[Sampled], *, step: int) -> tuple[Batch, dict[str, float]]:
        """All that the loss reads, and the batch's measures."""
        rows = _tensors(trained)
        rows["response_mask"] *= rows["versions"] >= self._staleness.oldest_trainable(step)  # as `store.withhold`
        newest_BT, entropy_BT = self._newest_log_probs(rows)
        measures = _measures(rows, newest_BT, entropy_BT, step=step)
        correction = self._algorithm.rollout_correction
        rows["old_log_probs"] = rows["rollout_log_probs"] if correction.bypass_mode else newest_BT
        if self._mixes:
            rows["rollout_log_probs"] = self._mixture(rows, trained, newest_BT, step=step)
        if not correction.bypass_mode:
            read = ("old_log_probs", "rollout_log_probs", "response_mask")
            data = DataProto.from_dict(tensors={name: rows[name] for name in read})
            data, _ = compute_rollout_correction_and_add_to_batch(data, correction)
            rows |= dict(data.batch.items())
        rows["advantages"], _ = get_adv_estimator_fn(self._algorithm.adv_estimator)(
            token_level_rewards=rows["token_level_rewards"],
            response_mask=rows["response_mask"],
            index=np.array([one.group for one in trained], dtype=object),
            norm_adv_by_std_in_grpo=self._algorithm.norm_adv_by_std_in_grpo,
        )
        return rows, measures

    def _mixture(self, rows: Batch, trained: Sequence[Sampled], newest_BT: Tensor, *, step: int) -> Tensor:
        """Log-probs under the mixture of versions that sampled a group, [B, T] nats, as `Mixture` has them."""
        # An extension, which a copy may lack.
        from recipe.async_dapo.extensions.mixture.balance_heuristic import group_mixture, segments_of
        from recipe.async_dapo.extensions.mixture.plan import plan_mixtures

        self._weights[step - 1] = deepcopy(self.model.state_dict())
        groups: dict[str, list[int]] = {}
        for row, one in enumerate(trained):
            groups.setdefault(one.group, []).append(row)
        versions = [torch.tensor(one.versions) for one in trained]

        def cut(values_BT: Tensor) -> list[Tensor]:
            return [values_T[: len(own_T)] for values_T, own_T in zip(values_BT, versions, strict=True)]

        plan = plan_mixtures([segments_of(own_T) for own_T in versions], groups.values(), self._weights)
        scored, mixed_BT = {step - 1: cut(newest_BT)}, rows["rollout_log_probs"].clone()
        for version in plan.passes_before(step - 1):
            self.model.load_state_dict(self._weights[version])
            scored[version] = cut(self._newest_log_probs(rows)[0])
        self.model.load_state_dict(self._weights[step - 1])
        recorded = cut(mixed_BT)
        for members in plan.groups:
            own = [versions[row] for row in members]
            of = {version: [scored[version][row] for row in members] for version in torch.cat(own).unique().tolist()}
            mixed = group_mixture(own, of, [recorded[row] for row in members])
            for row, mixed_T in zip(members, mixed, strict=True):
                recorded[row].copy_(mixed_T)
        return mixed_BT

    def accumulate(self, mini: Batch) -> float:
        """Add the gradient of a mini-batch, by micro-batches, as verl's workers do. Returns the share that PPO's loss
        clips [0-1].
        """
        tokens, clipped = int(mini["response_mask"].sum()), 0.0
        self._actor.global_batch_info.update(
            dp_size=1, batch_num_tokens=tokens, global_batch_size=len(mini["prompts"]), loss_scale_factor=None
        )
        for _, part in _micro_batches(mini):
            mask_BT = part["response_mask"].bool()
            if not mask_BT.any():
                continue
            loss, said = self._loss(
                old_log_prob=part["old_log_probs"],
                log_prob=self.logits(part).log_softmax(-1).gather(2, part["responses"][..., None])[..., 0],
                advantages=part["advantages"],
                response_mask=mask_BT,
                loss_agg_mode=self._actor.loss_agg_mode,
                config=self._actor,
                rollout_is_weights=part.get("rollout_is_weights"),
            )
            loss.backward()
            clipped += said.get("actor/pg_clipfrac", 0.0) * int(mask_BT.sum()) / tokens
        return clipped

    def logits(self, rows: Batch) -> Tensor:
        """Of the responses' tokens, [B, T, V]."""
        prompt_tok = rows["prompts"].shape[1]
        return self.model(torch.cat([rows["prompts"], rows["responses"]], dim=1))[:, prompt_tok - 1 : -1]

    @torch.no_grad()
    def _newest_log_probs(self, rows: Batch) -> tuple[Tensor, Tensor]:
        """Of the responses' tokens under the weights as they are, and the entropy of each choice, [B, T] nats."""
        newest_BT, entropy_BT = torch.zeros_like(rows["advantages"]), torch.zeros_like(rows["advantages"])
        for places, part in _micro_batches(rows):
            log_prob_BTV = self.logits(part).log_softmax(-1)
            longest = part["responses"].shape[1]
            newest_BT[places, :longest] = log_prob_BTV.gather(2, part["responses"][..., None])[..., 0]
            entropy_BT[places, :longest] = -(log_prob_BTV.exp() * log_prob_BTV).sum(-1)
        return newest_BT, entropy_BT


def _tensors(trained: Sequence[Sampled]) -> Batch:
    mask_BT = padded([[1] * len(one.tokens) for one in trained])
    rewards_BT, sampled_BT = torch.zeros(mask_BT.shape), torch.zeros(mask_BT.shape)
    for row, one in enumerate(trained):
        rewards_BT[row, len(one.tokens) - 1] = one.reward
        sampled_BT[row, : len(one.tokens)] = torch.tensor(one.log_probs)
    return {
        "prompts": torch.tensor([one.prompt for one in trained]),
        "responses": padded([one.tokens for one in trained]),
        "response_mask": mask_BT,
        "lengths": mask_BT.sum(-1, keepdim=True),
        "versions": padded([one.versions for one in trained]),
        "token_level_rewards": rewards_BT,
        "rollout_log_probs": sampled_BT,
        "advantages": torch.zeros(mask_BT.shape),
    }


def _micro_batches(rows: Batch) -> Iterator[tuple[list[int], Batch]]:
    """Rows of about equal length, cut to the longest of them, and where they were."""
    lens_tok = rows["lengths"][:, 0].tolist()
    places: list[int] = []
    order = sorted(range(len(lens_tok)), key=lens_tok.__getitem__)
    for row, following in zip(order, [*order[1:], None], strict=True):
        places.append(row)
        if following is None or (len(places) + 1) * lens_tok[following] > _MICRO_TOK:
            cut = {name: values[places] for name, values in rows.items()}
            whole = {name: cut.pop(name) for name in ("prompts", "lengths")}
            yield places, whole | {name: values[:, : lens_tok[row]] for name, values in cut.items()}
            places = []


def _measures(rows: Batch, newest_BT: Tensor, entropy_BT: Tensor, *, step: int) -> dict[str, float]:
    """How stale a batch is, in versions and in nats: k3 of pi_prox / mu as the recipe's metrics have it, of all tokens
    and of those so many versions old (`k3_of_N`).
    """
    mask_BT, age_BT = rows["response_mask"].bool(), step - 1 - rows["versions"]
    log_ratio_BT, ages = newest_BT - rows["rollout_log_probs"], Counter(age_BT[mask_BT].tolist())
    of_age = {age: ratio_statistics(ratio_sums(log_ratio_BT, mask_BT & (age_BT == age))) for age in sorted(ages)}
    return {
        "length": float(rows["lengths"].float().mean()),
        "reward": float(rows["token_level_rewards"].sum(-1).mean()),
        "entropy": float(entropy_BT[mask_BT].mean()),
        "staleness_mean": sum(age * count for age, count in ages.items()) / ages.total(),
        "staleness_max": max(ages),
        "off_policy": 1 - ages[0] / ages.total(),
        **ratio_statistics(ratio_sums(log_ratio_BT, mask_BT)),
        **{f"k3_of_{age}": statistics["k3_kl"] for age, statistics in of_age.items() if statistics},
    }
