"""The balance heuristic's weights for a recorded batch, by plain sums over what each version's checkpoint says of it.

Nothing of this uses the recipe: the model is transformers', and so are its log-probs.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

TRUNCATED_AT = 2.0  # algorithm.rollout_correction.rollout_is_threshold
TOLERANCE = 1e-4  # nats, float32


@dataclass
class WeighedRun:
    """What `inspected_run` has left in a run's folder."""

    folder: Path
    models: dict[int, Any] = field(default_factory=dict)
    batches: dict[int, list[list[dict[str, Any]]]] = field(default_factory=dict)

    def batch(self, step: int) -> list[list[dict[str, Any]]]:
        """Trajectories by prompt."""
        if step not in self.batches:
            groups: dict[str, list[dict[str, Any]]] = {}
            for row in torch.load(self.folder / "weighed" / f"step-{step}.pt", weights_only=False):
                groups.setdefault(row["uid"], []).append(row)
            self.batches[step] = list(groups.values())
        return self.batches[step]

    def model(self, version: int) -> Any:
        if version not in self.models:
            folder = self.folder / "weighed" / f"version-{version}"
            ranks = sorted(folder.glob("model_world_size_*_rank_*.pt"), key=lambda file: int(file.stem.split("_")[-1]))
            shards = [torch.load(file, weights_only=False) for file in ranks]
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "huggingface"))
            # FSDP2 cuts every parameter along its first dimension.
            model.load_state_dict({name: torch.cat([s[name]._local_tensor for s in shards]) for name in shards[0]})
            self.models[version] = model.float().eval()
        return self.models[version]

    @torch.no_grad()
    def log_softmax(self, row: dict[str, Any], version: int) -> Tensor:
        """Of all words at every sampled token, [T, words] nats."""
        known = row.setdefault("log_softmax", {})
        if version not in known:
            logits = self.model(version)(row["input_ids"][None]).logits[0, len(row["prompts"]) - 1 : -1]
            known[version] = torch.log_softmax(logits[row["policy_versions"] >= 0], -1)
        return known[version]

    def log_probs(self, row: dict[str, Any], version: int) -> list[float]:
        """Of the tokens that were sampled, nats."""
        return self.log_softmax(row, version).gather(-1, sampled(row)[:, None])[:, 0].tolist()

    def engines_log_softmax(self, row: dict[str, Any]) -> Tensor:
        """Every token's under the version that sampled it, [T, words] nats."""
        versions = row["policy_versions"][row["policy_versions"] >= 0].tolist()
        return torch.stack([self.log_softmax(row, version)[t] for t, version in enumerate(versions)])

    def weights(self, group: list[dict[str, Any]], newest: int) -> list[list[float]]:
        """Of every member's sampled tokens."""
        versions = [row["policy_versions"][row["policy_versions"] >= 0].tolist() for row in group]
        weights = []
        for row, own in zip(group, versions, strict=True):
            by_version = {v: self.log_probs(row, v) for v in {newest, *(v for each in versions for v in each)}}
            recorded = row["rollout_log_probs"][row["policy_versions"] >= 0].tolist()
            sampled_by = [by_version[v][t] for t, v in enumerate(own)]
            mixed = _mixture(versions, by_version, len(own))
            moved = [r + m - s for r, m, s in zip(recorded, mixed, sampled_by, strict=True)]
            weights.append(truncated(by_version[newest], moved))
        return weights

    def decoupled(self, group: list[dict[str, Any]], newest: int) -> list[list[float]]:
        """The same for a group without a mixture."""
        recorded = [row["rollout_log_probs"][row["policy_versions"] >= 0].tolist() for row in group]
        return [truncated(self.log_probs(row, newest), own) for row, own in zip(group, recorded, strict=True)]


def assert_weighed(weighed: WeighedRun, groups: Iterable[tuple[int, list[dict[str, Any]]]]) -> None:
    """Of (step, group): the run's weights are those by hand."""
    for step, group in groups:
        for own, expected in zip(trained_with(group), weighed.weights(group, newest=step - 1), strict=True):
            assert own == pytest.approx(expected, rel=1e-3)


def assert_stamped(weighed: WeighedRun, rows: Iterable[tuple[int, dict[str, Any]]]) -> float:
    """Of (step, trajectory): every token was sampled by the version that it is stamped with. Returns the largest
    difference between that version's log-probs and the newest one's [nats].
    """
    moved = 0.0
    for step, row in rows:
        own = weighed.engines_log_softmax(row).gather(-1, sampled(row)[:, None])[:, 0].tolist()
        assert own == pytest.approx(row["rollout_log_probs"][row["policy_versions"] >= 0].tolist(), abs=TOLERANCE)
        moved = max(moved, *(abs(a - b) for a, b in zip(own, weighed.log_probs(row, step - 1), strict=True)))
    return moved


def sampled(row: dict[str, Any]) -> Tensor:
    """The tokens that the engines sampled."""
    return row["input_ids"][len(row["prompts"]) :][row["policy_versions"] >= 0]


def trained_with(group: list[dict[str, Any]]) -> list[list[float]]:
    """The weights that the run had."""
    return [row["rollout_is_weights"][row["policy_versions"] >= 0].tolist() for row in group]


def versions_of(group: list[dict[str, Any]]) -> set[int]:
    return {int(v) for row in group for v in row["policy_versions"] if v >= 0}


def switches_of(row: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """(token, version) wherever a trajectory's version changes."""
    versions = row["policy_versions"][row["policy_versions"] >= 0].tolist()
    return tuple((token, new) for token, (old, new) in enumerate(pairwise([None, *versions])) if old != new)


def truncated(target: Iterable[float], sampled_by: Iterable[float]) -> list[float]:
    return [min(math.exp(p - q), TRUNCATED_AT) for p, q in zip(target, sampled_by, strict=True)]


def _mixture(versions: list[list[int]], by_version: dict[int, list[float]], length: int) -> list[float]:
    """Token by token, log of the mean over members of the prefix's probability, less that of the prefix before."""
    log_mixture, before = [], 0.0
    sums = [0.0] * len(versions)
    for t in range(length):
        for i, schedule in enumerate(versions):
            sums[i] += by_version[schedule[min(t, len(schedule) - 1)]][t]
        prefix = float(torch.logsumexp(Tensor(sums).double(), 0)) - math.log(len(sums))
        log_mixture.append(prefix - before)
        before = prefix
    return log_mixture
