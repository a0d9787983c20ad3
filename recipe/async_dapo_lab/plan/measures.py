"""What a simulated step came to, and the mean of steps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from ...async_dapo.core.staleness import StalenessLimit, VersionShares, VersionTag
from ...async_dapo.core.trajectory import PromptGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMeasure:
    """One step. Tokens are generated ones unless the name says otherwise."""

    step_s: float
    rollout_s: float  # that the trainer waits for samples
    log_prob_s: float
    train_s: float
    trained_tok: int
    generated_tok: int
    filtered_tok: int
    wasted_tok: int  # thrown away: interrupted without being kept, surplus, retired
    withheld_tok: int  # trained trajectories' tokens that are too stale for the loss
    buffered_tok: int  # kept for later steps, at the end of the step
    off_policy_tok: int  # in the loss, from older policy versions than the one trained
    staleness_tok: int  # sum over tokens in the loss of their staleness [versions x tokens]
    staleness_max: int  # of a token in the loss
    trained_trajectories: int
    resumed_trajectories: int  # trained, carried over at least once
    trained_groups: int
    valid_groups: int  # that ended in this step
    filtered_groups: int
    drawn_groups: int
    retired_groups: int = 0
    prefilled_tok: int
    reprefilled_tok: int  # of these: contexts of continued trajectories
    recomputed_tok: int  # of these: after a preemption
    preemptions: int
    inflight_max: int
    inflight_max_s: float  # times the rollout's seconds
    lease_s: float
    server_busy_s: float
    prefill_s: float
    num_servers: int
    num_gpus: int

    @property
    def in_loss_tok(self) -> float:
        return self.trained_tok - self.withheld_tok

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens in the loss over the whole step."""
        return self.in_loss_tok / (self.step_s * self.num_gpus)

    @property
    def idle_ratio(self) -> float:
        """As `async_dapo/load_balancer/idle_ratio`: empty capacity, of what was used at the round's peak [0-1]."""
        return max(0.0, 1 - self.lease_s / self.inflight_max_s) if self.inflight_max_s else 0.0

    @property
    def waste_ratio(self) -> float:
        """As `async_dapo/tokens/waste_ratio`: thrown-away and withheld tokens, of these and those in the loss [0-1]."""
        return _ratio(self.wasted_tok + self.withheld_tok, self.wasted_tok + self.trained_tok)

    @property
    def off_policy_ratio(self) -> float:
        return _ratio(self.off_policy_tok, self.in_loss_tok)

    @property
    def staleness_mean(self) -> float:
        return _ratio(self.staleness_tok, self.in_loss_tok)

    @property
    def trained_len_tok(self) -> float:
        return _ratio(self.trained_tok, self.trained_trajectories)

    @property
    def prefill_ratio(self) -> float:
        """Share of the servers' busy time that went into prefill [0-1]."""
        return _ratio(self.prefill_s, self.server_busy_s)


def tokens_by_age(
    batch: Iterable[VersionTag], versions: VersionShares, *, limit: StalenessLimit, step: int
) -> dict[str, int]:
    """What of a step's measure the policy versions of its batch decide; `versions` are the batch's."""
    most, oldest_version = limit.max_staleness, limit.oldest_trainable(step)
    in_loss = {stale: n for stale, n in versions.tokens.items() if most is None or stale <= most}
    return {
        "trained_tok": versions.tokens.total(),
        "withheld_tok": sum(n for tag in batch for version, n in tag["segments"] if version < oldest_version),
        "off_policy_tok": sum(n for stale, n in in_loss.items() if stale),
        "staleness_tok": sum(stale * n for stale, n in in_loss.items()),
        "staleness_max": max(in_loss, default=0),
    }


def version_tags(groups: Iterable[PromptGroup]) -> list[VersionTag]:
    """Of their trajectories, a group's next to each other."""
    return [
        {"segments": list(one.stamps), "min_global_steps": min(version for version, _ in one.stamps), "age": one.age}
        for group in groups
        for one in group.trajectories
    ]


def mean_of(steps: Sequence[StepMeasure]) -> StepMeasure:
    """The mean step; maxima are the largest."""
    assert steps, "no step was measured"
    values = {}
    for field in fields(StepMeasure):
        column = [getattr(step, field.name) for step in steps]
        values[field.name] = max(column) if field.name.endswith("_max") else sum(column) / len(column)
    return StepMeasure(**values)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
