"""What is compared: how stale the tokens are, and what the loss makes of it. Each is a set of the recipe's options."""

from dataclasses import dataclass
from itertools import product
from typing import Any

from .tasks import TASKS, Task

GROUPS, RESPONSES = 16, 8  # of a step: B prompts, n responses each
ON_POLICY = "on-policy"
AGAIN = "on-policy again"  # with other noise: by how much a run beside it may differ by chance
DEFAULT = "default"  # of `max_staleness` and pool
STALENESS = (DEFAULT, "1", "2", "3", "4", "8", "16")  # versions
STALE_KV = "partial_stale_kv"  # `partial`, with keys and values of older weights
SEPARATE = "separate"  # `partial`, on engines that are one version behind, as they generate while it is trained
STRATEGIES = ("partial", "consistent", STALE_KV, SEPARATE)

_IS = "async_dapo.importance_sampling"
_CORRECTION = "algorithm.rollout_correction"
_LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
_CLIP = "actor_rollout_ref.actor.clip_ratio"
_BAND = "0.5_5.0"


def _clipped(low: float, high: float, most: float = 10.0) -> dict[str, Any]:
    return {f"{_CLIP}_low": low, f"{_CLIP}_high": high, f"{_CLIP}_c": most}


def _one_pass(threshold: Any) -> dict[str, Any]:
    return {
        _IS: "bypass",
        f"{_CORRECTION}.loss_type": "reinforce",
        f"{_CORRECTION}.rollout_is": "token",
        f"{_CORRECTION}.rollout_is_threshold": threshold,
    }


# r = pi_theta / pi_prox, w = pi_prox / mu, s = pi_theta / mu; A is the advantage.
CORRECTIONS: dict[str, dict[str, Any]] = {
    # clip(r) A: DAPO, arXiv:2503.14476 eq. 8, as if the newest weights had sampled all.
    "none": {_IS: "none"},
    # min(w, 2) clip(r) A: decoupled PPO, arXiv:2110.00641; truncated as in verl's documentation of rollout correction.
    "decoupled": {_IS: "decoupled"},
    # The same with w set to 0 outside of 0.5 to 5: IcePop, verl's band of thresholds.
    "decoupled band": {_IS: "decoupled", f"{_CORRECTION}.rollout_is_threshold": _BAND},
    # decoupled, without trajectories whose mean of w - 1 - log w is above 0.01: verl's `decoupled_k3_rs_token_tis`.
    # Near it lies DeepSeek-V3.2, arXiv:2512.02556: the mean of -log s, and only where A < 0.
    "sequence mask": {
        _IS: "decoupled",
        f"{_CORRECTION}.rollout_rs": "seq_mean_k3",
        f"{_CORRECTION}.rollout_rs_threshold": 0.01,
    },
    # min(prod w, 2) clip(r) A, the product over a trajectory.
    "decoupled sequence": {_IS: "decoupled", f"{_CORRECTION}.rollout_is": "sequence"},
    # min(pi_prox / q, 2) clip(r) A; q is the mixture of the versions that sampled the group: Owen 2013, chapter 9.
    "mixture": {_IS: "mixture"},
    # clip(s) A: CoPRIS, arXiv:2511.05589 eq. 8.
    "bypass": {_IS: "bypass"},
    # min(s, 2) A log pi_theta without a gradient through s: AIPO, arXiv:2505.24034.
    "truncated": _one_pass(2.0),
    # The same with s set to 0 outside of 0.5 to 5: IcePop in one pass.
    "truncated band": _one_pass(_BAND),
    # clip(s) A log pi_theta without a gradient through clip(s): CISPO, arXiv:2506.13585 eq. 4, whose only bound is the
    # upper one.
    "cispo": {_IS: "bypass", _LOSS: "cispo", **_clipped(1.0, 0.28)},
    # s A log pi_theta, masked where the probability has moved too far away from mu: DPPO, arXiv:2602.04879.
    "dppo_tv": {_IS: "bypass", _LOSS: "dppo_tv", **_clipped(0.15, 0.15, 20.0)},
    "dppo_kl": {_IS: "bypass", _LOSS: "dppo_kl", **_clipped(0.05, 0.05, 20.0)},
    # Clipped geometric mean of a trajectory's s: GSPO, arXiv:2507.18071 eq. 7.
    "gspo": {
        _IS: "bypass",
        _LOSS: "gspo",
        **_clipped(3e-4, 4e-4),
        "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-mean",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run.

    Attributes:
        staleness: one of STALENESS; 0 on-policy.
        rate_factor: of the task's learning rate.
        updates: of the model in a step, one a mini-batch.
    """

    task: str
    strategy: str
    staleness: str
    correction: str
    rate_factor: float
    updates: int
    steps: int
    seed: int

    @property
    def shape(self) -> Task:
        return TASKS[self.task]

    @property
    def is_behind(self) -> bool:
        """Whether it samples with the version before the newest."""
        return self.strategy == SEPARATE

    @property
    def keeps_kv(self) -> bool:
        return self.strategy == STALE_KV

    @property
    def noise(self) -> int:
        """Seed of what the model answers."""
        return self.seed + 1000 * (self.strategy == AGAIN)

    @property
    def pool(self) -> int | None:
        """Trajectories unfinished at once, where staleness is forced up: twice what can be trained in time if every
        group is valid. The scheduler begins fewer, so that `max_staleness` decides.
        """
        return None if self.staleness in ("0", DEFAULT) else 2 * (1 + int(self.staleness)) * GROUPS * RESPONSES

    @property
    def groups(self) -> int:
        """Of a step."""
        return GROUPS

    @property
    def places(self) -> int:
        """Requests that engines hold at once: all of the pool."""
        return self.pool or 4 * GROUPS * RESPONSES

    @property
    def scheduling(self) -> dict[str, Any]:
        """Options of the simulated rounds, by full key."""
        common = {"algorithm.filter_groups.max_num_gen_batches": 50, "async_dapo.report_dir": None}
        if self.staleness == "0":
            options: dict[str, Any] = {"rollout_strategy": "discard", "stop_rule": "drain", "max_staleness": 0}
        else:
            options = {"rollout_strategy": "consistent" if self.strategy == "consistent" else "partial"}
        if self.pool is not None:
            options |= {
                "max_staleness": int(self.staleness) - self.is_behind,
                "rollout_pool_size": self.pool,
                "over_sampling_batch_size": self.pool // RESPONSES + 2 * GROUPS,
            }
        return common | {f"async_dapo.{key}": value for key, value in options.items()}

    @property
    def overrides(self) -> list[str]:
        """All of the run's options, for Hydra."""
        actor = "actor_rollout_ref.actor"
        options: dict[str, Any] = {
            "data.train_batch_size": GROUPS,
            "data.max_prompt_length": self.shape.prompt_tok,
            "data.max_response_length": self.shape.limit_tok,
            "actor_rollout_ref.rollout.n": RESPONSES,
            f"{actor}.ppo_micro_batch_size_per_gpu": RESPONSES,
            f"{actor}.ppo_mini_batch_size": GROUPS // self.updates,
            f"{actor}.optim.lr": self.rate_factor * self.shape.learning_rate,
            **self.scheduling,
            **({"async_dapo.max_staleness": int(self.staleness)} if self.pool else {}),
            **CORRECTIONS[self.correction],
        }
        return [f"{key}={'null' if value is None else value}" for key, value in options.items()]


def usual_steps(task: Task, *, rate_factor: float, updates: int) -> int:
    """A run's steps: the task's, divided by how much more a step learns than at the task's rate and one update."""
    return round(task.steps / max(1.0, rate_factor * updates))


def named_rows() -> dict[str, dict[str, str]]:
    """Name on the command line -> strategy, staleness and correction."""
    rows = {name: (name, "0", "none") for name in (ON_POLICY, AGAIN)}
    too_young = {(SEPARATE, staleness) for staleness in (DEFAULT, "1")}  # nothing could be kept
    stale = product(STRATEGIES, STALENESS, CORRECTIONS)
    rows |= {"/".join(row): row for row in stale if row[:2] not in too_young}
    return {name: dict(zip(("strategy", "staleness", "correction"), row, strict=True)) for name, row in rows.items()}
