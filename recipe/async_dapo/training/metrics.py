"""Every metric the recipe logs, what it means, and how a round becomes metrics."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.concurrency import EngineLoad
from ..core.length_bias import LengthBiasWindow, mean_tok, quantile_tok
from ..core.outcome import Verdict
from ..core.over_sampling import OverSampling, RoundSize
from ..core.pool import Dispatch, Settlement
from ..core.staleness import VersionShares
from ..core.trajectory import PromptGroup
from ..record.keys import PREFIX, STALENESS_BUCKETS

# Name without the prefix -> meaning. The README's table is generated from this; a test refuses other keys.
METRICS: dict[str, str] = {
    "ledger/drawn": "prompt groups drawn since the start of the run [groups]",
    "ledger/trained": "of these: trained on [groups]",
    "ledger/filtered": "of these: dropped because their metric does not vary [groups]",
    "ledger/failed": "of these: dropped because a trajectory failed for good [groups]",
    "ledger/retired": "of these: given up, too stale or with agent loops that are gone; drawn again [groups]",
    "ledger/waiting": "of these: waiting to be generated [groups]",
    "ledger/deferred": "of these: set aside because of their prompts' history [groups]",
    "ledger/buffered": "of these: kept with what they have generated [groups]",
    "round/groups_to_hold": "over-sampling target at the start of the next step [groups]",
    "round/trained_groups": "groups in this step's batch [groups]",
    "round/rollout_s": "from the opening of the round to the last worker's report [s]",
    "early_stop/stop_latency_s": "from the report that met the stop rule until every request is back [s]",
    "early_stop/interrupted_groups": "groups that the stop interrupted [groups]",
    "early_stop/redrawn_groups": "complete, but behind those that fifo waits for; with discard queued again [groups]",
    "early_stop/lost_reports": "started groups that no worker gave back; queued again [groups]",
    "filter/rejected_groups": "groups whose metric does not vary [groups]",
    "filter/valid_share": "share of groups that is expected to be valid in the next step [0-1]",
    "filter/rejected_ratio": "share of rejected groups, of all that were judged [0-1]",
    "selection/skipped_prompts": "prompts deferred [groups]",
    "failure/groups": "groups dropped because a trajectory failed for good [groups]",
    "failure/killed_reward_processes": "reward processes killed because a call hung, or ended by a call [count]",
    "calls/replayed": "calls answered from the record of resumed trajectories, or by a call that ran on [count]",
    "calls/carried": "calls that ran on when this step's stop interrupted their trajectories [count]",
    "calls/kept_loops": "agent loops with a state that stayed alive over this step's stop [count]",
    "calls/lost_loops": "agent loops with replayable = False that were gone: their groups are retired [count]",
    "calls/failed": "calls of tools that raised or took longer than async_dapo.calls.timeout_s [count]",
    "calls/failed_ratio": "share of them, of all calls of tools that were answered [0-1]",
    "calls/waiting_max": "most trajectories that waited for calls at once, without a place [trajectories]",
    "turns/mean": "turns of the model in a trajectory, of those that ended [count]",
    "turns/tokens/mean": "tokens of a turn [tokens]",
    "turns/calls_s": "time that a trajectory spent in calls of tools, over all its steps, of those that ended [s]",
    "load_balancer/requests": "leases granted [requests]",
    "load_balancer/servers": "servers that generate, at the end of the round [servers]",
    "load_balancer/lost_servers": "servers that died, or were ended because they did not answer, since the start of "
    "the run [servers]",
    "load_balancer/inflight/max": "most requests in flight at once [requests]",
    "load_balancer/idle_ratio": "share of request places left empty over the round, of the most in flight at once "
    "[0-1]",
    # With placement=separate only.
    "load_balancer/versions_behind": "policy versions that the oldest weights in an engine are behind the trainer's, "
    "where engines have GPUs of their own [versions]",
    "load_balancer/update_s": "time that an engine takes no requests for new weights, mean, there [s]",
    # Always.
    "concurrency/slowest_speed": "speed of the slowest server, over that of servers that are not slow [0-1]",
    "concurrency/kv_peak": "largest share of a server's KV cache in use [0-1]",
    "concurrency/preemptions": "requests that engines preempted because the KV cache was full [count]",
    # With drafts only.
    "drafts/tok_per_step": "tokens of a response that an engine's step yields, mean over this training step [tokens]",
    "tokens/trained": "generated tokens in the batch, without withheld ones [tokens]",
    "tokens/discarded": "tokens thrown away: interrupted without being kept, retired, withheld, diverged, or of failed "
    "groups [tokens]",
    "tokens/filtered": "tokens of groups that the filter removed [tokens]",
    "tokens/waste_ratio": "thrown-away tokens over thrown-away plus trained ones [0-1]",
    "partial/off_policy_token_ratio": "share of the batch's tokens from older policy versions [0-1]",
    "partial/resumed_groups": "groups continued from earlier steps [groups]",
    "partial/withheld_tokens": "too stale tokens taken out of the loss [tokens]",
    "partial/reprefilled_tokens": "context tokens computed again for continued requests [tokens]",
    "partial/diverged_tokens": "recorded tokens dropped because a resumed agent loop took another way [tokens]",
    "partial/buffer_tokens": "tokens kept in unfinished groups for the next step [tokens]",
    "staleness/mean": "staleness of the batch's tokens, withheld ones included [versions]",
    "staleness/max": "staleness of the batch's oldest token, withheld ones included [versions]",
    **{
        f"staleness/tokens/{name}": f"share of the batch's tokens with staleness {name} [0-1]"
        for name in STALENESS_BUCKETS
    },
    "age/max": "most rounds that one of the batch's trajectories was carried over unfinished [rounds]",
    "length/trained/mean": "response length of trained groups over the sliding window [tokens]",
    "length/dispatched/mean": "response length of all groups that could have been trained, each with its longest "
    "attempt, same window [tokens]",
    "length/trained_to_dispatched": "ratio of the two: below 1, training prefers short answers",
    "length/dispatched/p50": "median response length of dispatched groups over the window [tokens]",
    "length/dispatched/p90": "90 % quantile [tokens]",
    "importance/not_finite_tokens": "tokens of the loss whose ratio is no finite number: left out below [tokens]",
    "importance/overall/ess_ratio": "effective sample size of the token ratios pi_prox / mu over their number, all "
    "tokens of the loss, rejected ones included; with mixture, mu is the mixture [0-1]",
    "importance/overall/ratio_max": "largest pi_prox / mu of these tokens",
    "importance/overall/k3_kl": "k3 estimate of KL(mu || pi_prox) over these tokens [nats per token]",
    "importance/staleness_0/ratio_max": "largest pi_prox / mu of the newest version's tokens: 1 where engines and "
    "trainer agree",
    "importance/staleness_0/k3_kl": "k3 estimate of KL(mu || pi_prox) over these tokens: 0 where engines and trainer "
    "agree [nats per token]",
    # With importance_sampling=mixture only.
    "mixture/scored_trajectories": "trajectories scored under older versions, once for each version [trajectories]",
    "mixture/token_share": "share of the batch's tokens that have a mixture of several versions [0-1]",
    "mixture/unknown_share": "share of the batch's tokens whose group has versions without a snapshot, as after a "
    "resume; corrected as under decoupled [0-1]",
    "mixture/snapshot_bytes": "CPU memory of all versions that are kept, over all ranks [bytes]",
}


if TYPE_CHECKING:
    from ..rollout.reports import RoundResult

VOTES = "pred"  # the field by which verl counts what most answers to a prompt say


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """All that a step's rollout leaves to be measured."""

    result: "RoundResult"
    dispatch: Dispatch
    settlement: Settlement
    ledger: Mapping[str, int]
    over_sampling: OverSampling  # as of the next step
    round_size: RoundSize  # so, too
    withheld_tok: int
    versions: VersionShares
    buffered: Sequence[PromptGroup]
    lengths: LengthBiasWindow
    skipped: int

    @property
    def staleness_bound(self) -> int | None:
        """Most trajectories in flight in the next round that the limit on staleness allows; None = no limit."""
        return self.round_size.staleness_bound(self.over_sampling.valid_share)


def round_metrics(record: RoundRecord) -> dict[str, float]:
    """The step's metrics. Keys are those of `METRICS`, prefixed."""
    values: dict[str, float] = {f"ledger/{term}": count for term, count in record.ledger.items()}
    for part in (_round, _stop, _failures, _load, _concurrency, _tokens, _partial, _versions, _lengths):
        values |= part(record)
    calls = record.result.workers.calls
    values |= {f"calls/{name}": getattr(calls, name) for name in ("replayed", "carried", "kept_loops", "failed")}
    values["calls/failed_ratio"] = _ratio(calls.failed, calls.answered)
    values["calls/lost_loops"] = record.dispatch.lost_loops
    values["calls/waiting_max"] = record.result.summary.waiting_for_calls_max
    values |= {f"turns/{name}": value for name, value in record.result.workers.turns.figures().items()}
    return {PREFIX + name: float(value) for name, value in values.items()}


def _round(record: RoundRecord) -> dict[str, float]:
    summary = record.result.summary
    valid = sum(outcome.verdict is Verdict.VALID for outcome in summary.outcomes)
    rejected = record.settlement.filtered
    return {
        "round/groups_to_hold": record.over_sampling.groups_to_hold,
        "round/rollout_s": record.result.rollout_s,
        "round/trained_groups": len(record.settlement.trained_uids),
        "selection/skipped_prompts": record.skipped,
        "filter/rejected_groups": rejected,
        "filter/valid_share": record.over_sampling.valid_share,
        "filter/rejected_ratio": _ratio(rejected, rejected + valid),
    }


def _stop(record: RoundRecord) -> dict[str, float]:
    return {
        "early_stop/stop_latency_s": record.result.stop_latency_s,
        "early_stop/interrupted_groups": len(record.result.summary.taken_unreported),
        "early_stop/redrawn_groups": len(record.settlement.redrawn_uids),
        "early_stop/lost_reports": record.settlement.lost_reports,
    }


def _failures(record: RoundRecord) -> dict[str, float]:
    return {
        "failure/groups": sum(record.settlement.failed.values()),
        "failure/killed_reward_processes": record.result.workers.killed_reward_processes,
    }


def _load(record: RoundRecord) -> dict[str, float]:
    balancer = record.result.balancer
    most_s = balancer.inflight_max * record.result.rollout_s
    updates: dict[str, float] = {}
    if (ours := balancer.updates) is not None:
        updates["load_balancer/versions_behind"] = ours.versions_behind
        if ours.ended:
            updates["load_balancer/update_s"] = ours.mean_s
    return updates | {
        "load_balancer/requests": balancer.acquired,
        "load_balancer/servers": balancer.servers,
        "load_balancer/lost_servers": balancer.lost_servers,
        "load_balancer/inflight/max": balancer.inflight_max,
        "load_balancer/idle_ratio": _ratio(max(0.0, most_s - balancer.busy_s), most_s),
    }


def _concurrency(record: RoundRecord) -> dict[str, float]:
    balancer = record.result.balancer
    loads = balancer.loads.values()
    return {
        **_drafts(loads),
        "concurrency/slowest_speed": balancer.concurrency["slowest_speed"],
        "concurrency/kv_peak": max((load.kv_peak for load in loads), default=0.0),
        "concurrency/preemptions": sum(load.preemptions for load in loads),
    }


def _drafts(loads: Collection[EngineLoad]) -> dict[str, float]:
    """Every response that decodes in a step gets a token, and those of its draft that are accepted."""
    if not any(load.drafted_tok for load in loads):
        return {}
    generated, accepted = sum(load.generated_tok for load in loads), sum(load.accepted_tok for load in loads)
    return {"drafts/tok_per_step": _ratio(generated, generated - accepted)}


def _tokens(record: RoundRecord) -> dict[str, float]:
    ended: Counter[Verdict] = Counter()
    for outcome in record.result.summary.outcomes:
        ended[outcome.verdict] += sum(outcome.response_lens_tok)
    trained = record.versions.tokens.total() - record.withheld_tok
    interrupted, retired = record.settlement.discarded_tok, record.dispatch.retired_tok
    discarded = interrupted + retired + record.withheld_tok + record.result.workers.diverged_tok + ended[Verdict.FAILED]
    return {
        "tokens/trained": trained,
        "tokens/discarded": discarded,
        "tokens/filtered": ended[Verdict.FILTERED],
        "tokens/waste_ratio": _ratio(discarded, discarded + trained),
    }


def _partial(record: RoundRecord) -> dict[str, float]:
    resumed = {group.uid for group in record.dispatch.groups[: record.dispatch.resumed]}
    return {
        "partial/off_policy_token_ratio": record.versions.partial_share,
        "partial/resumed_groups": len(resumed.intersection(record.result.summary.start_order)),
        "partial/withheld_tokens": record.withheld_tok,
        "partial/reprefilled_tokens": sum(record.result.workers.reprefilled_tok),
        "partial/diverged_tokens": record.result.workers.diverged_tok,
        "partial/buffer_tokens": sum(group.generated_tok for group in record.buffered),
    }


def _versions(record: RoundRecord) -> dict[str, float]:
    shares = record.versions
    return {
        "staleness/mean": _mean(shares.tokens),
        "staleness/max": max(shares.tokens, default=0),
        "age/max": max(shares.ages, default=0),
        **_histogram("staleness/tokens", shares.tokens),
    }


def _lengths(record: RoundRecord) -> dict[str, float]:
    dispatched = record.lengths.dispatched
    trained_tok, dispatched_tok = mean_tok(record.lengths.trained), mean_tok(dispatched)
    return {
        "length/trained/mean": trained_tok,
        "length/dispatched/mean": dispatched_tok,
        "length/dispatched/p50": quantile_tok(dispatched, 0.5),
        "length/dispatched/p90": quantile_tok(dispatched, 0.9),
        "length/trained_to_dispatched": _ratio(trained_tok, dispatched_tok),
    }


def _histogram(name: str, counts: Counter) -> dict[str, float]:
    last = len(STALENESS_BUCKETS) - 1
    buckets = Counter(dict.fromkeys(range(last + 1), 0))
    for value, count in counts.items():
        buckets[min(max(value, 0), last)] += count
    return {f"{name}/{STALENESS_BUCKETS[i]}": _ratio(count, counts.total()) for i, count in buckets.items()}


def _mean(counts: Counter) -> float:
    return _ratio(sum(value * count for value, count in counts.items()), counts.total())


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def fields_to_average(rewards: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """What verl can average of the fields that validation's answers were rewarded with: numbers in every answer that
    has them; and `pred`, if its values can be counted as votes.

    Args:
        rewards: field -> its value in each answer; None in those without it.
    """

    def fits(name: str, value: Any) -> bool:
        return value is None or isinstance(value, Real | np.bool_) or (name == VOTES and isinstance(value, str))

    return {name: values for name, values in rewards.items() if all(fits(name, value) for value in values)}
