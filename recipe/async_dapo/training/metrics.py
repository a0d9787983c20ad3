"""Every metric the recipe logs, what it means, and how a round becomes metrics."""

from collections import Counter
from collections.abc import Collection, Mapping
from numbers import Real
from statistics import fmean
from typing import Any

import numpy as np

from ..core.concurrency import EngineLoad
from ..core.length_bias import LengthBiasWindow, mean_tok, quantile_tok
from ..core.outcome import Verdict
from ..core.over_sampling import OverSampling
from ..core.round import RoundSummary
from ..core.staleness import VersionShares
from ..record.keys import PREFIX, STALENESS_BUCKETS
from ..rollout.reports import RoundRecord, WorkerReport

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
    "early_stop/redrawn_groups": "complete, but behind those that fifo waits for; queued again [groups]",
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
    "calls/waiting_max": "most trajectories that waited for calls at once, and so held no engine [trajectories]",
    "turns/mean": "turns of the model in a trajectory, of those that ended [count]",
    "turns/tokens/mean": "tokens of a turn [tokens]",
    "turns/calls_s": "time that a trajectory spent in calls of tools, over all its steps, of those that ended [s]",
    "load_balancer/requests": "leases granted [requests]",
    "load_balancer/servers": "servers that generate, at the end of the round [servers]",
    "load_balancer/lost_servers": "servers that died, or were ended because they did not answer, since the start of "
    "the run [servers]",
    "load_balancer/inflight/max": "most requests in flight at once [requests]",
    "load_balancer/idle_ratio": "share of capacity left empty over the round, of the most requests in flight at once "
    "[0-1]",
    # With placement=separate only.
    "load_balancer/versions_behind": "policy versions that the oldest weights in an engine are behind the trainer's, "
    "where engines have GPUs of their own [versions]",
    "load_balancer/update_s": "time that an engine takes no requests for new weights, mean, there [s]",
    # Always.
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
    "partial/found_tokens": "context tokens of continued requests that engines had kept [tokens]",
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


VOTES = "pred"  # the field by which verl counts what most answers to a prompt say


def round_metrics(
    record: RoundRecord,
    versions: VersionShares,
    *,
    ledger: Mapping[str, int],
    over_sampling: OverSampling,
    withheld_tok: int,
    buffered_tok: int,
    lengths: LengthBiasWindow,
    skipped: int,
) -> dict[str, float]:
    """The step's metrics. Keys are those of `METRICS`, prefixed.

    Args:
        versions: of the batch.
        over_sampling: as of the next step.
        withheld_tok: too stale tokens of the batch.
        buffered_tok: of unfinished groups.
        skipped: prompts that were deferred.
    """
    values: dict[str, float] = {f"ledger/{term}": count for term, count in ledger.items()}
    values |= _groups(record.summary) | _load(record) | _concurrency(record.balancer.loads.values())
    values |= _tokens(record, trained_tok=versions.tokens.total() - withheld_tok, withheld_tok=withheld_tok)
    values |= _versions(versions) | _lengths(lengths) | _calls(record.workers)
    values |= {
        "round/groups_to_hold": over_sampling.groups_to_hold,
        "round/rollout_s": record.rollout_s,
        "selection/skipped_prompts": skipped,
        "filter/valid_share": over_sampling.valid_share,
        "failure/killed_reward_processes": record.workers.killed_reward_processes,
        "partial/buffer_tokens": buffered_tok,
    }
    return {PREFIX + name: float(value) for name, value in values.items()}


def _groups(summary: RoundSummary) -> dict[str, float]:
    rejected = len(summary.ended(Verdict.FILTERED))
    return {
        "round/trained_groups": len(summary.trained_uids),
        "early_stop/stop_latency_s": summary.stop_latency_s,
        "early_stop/interrupted_groups": len(summary.taken_unreported),
        "early_stop/redrawn_groups": len(summary.ended(Verdict.REDRAWN)),
        "early_stop/lost_reports": summary.lost_reports,
        "filter/rejected_groups": rejected,
        "filter/rejected_ratio": _ratio(rejected, rejected + len(summary.ended(Verdict.VALID))),
        "failure/groups": len(summary.ended(Verdict.FAILED)),
        "partial/resumed_groups": summary.resumed,
        "calls/lost_loops": summary.lost_loops,
        "calls/waiting_max": summary.waiting_for_calls_max,
    }


def _calls(workers: WorkerReport) -> dict[str, float]:
    calls = workers.calls
    return {
        **{f"calls/{name}": getattr(calls, name) for name in ("replayed", "carried", "kept_loops", "failed")},
        "calls/failed_ratio": _ratio(calls.failed, calls.answered),
        **{f"turns/{name}": value for name, value in workers.turns.figures().items()},
    }


def _load(record: RoundRecord) -> dict[str, float]:
    balancer = record.balancer
    most_s = balancer.inflight_max * record.rollout_s
    values: dict[str, float] = {
        "load_balancer/requests": balancer.acquired,
        "load_balancer/servers": balancer.servers,
        "load_balancer/lost_servers": balancer.lost_servers,
        "load_balancer/inflight/max": balancer.inflight_max,
        "load_balancer/idle_ratio": _ratio(max(0.0, most_s - balancer.busy_s), most_s),
    }
    if balancer.versions_behind is not None:
        values["load_balancer/versions_behind"] = balancer.versions_behind
    if balancer.updates_s:
        values["load_balancer/update_s"] = fmean(balancer.updates_s)
    return values


def _concurrency(loads: Collection[EngineLoad]) -> dict[str, float]:
    return {
        **_drafts(loads),
        "concurrency/kv_peak": max((load.kv_peak for load in loads), default=0.0),
        "concurrency/preemptions": sum(load.preemptions for load in loads),
    }


def _drafts(loads: Collection[EngineLoad]) -> dict[str, float]:
    """Every response that decodes in a step gets a token, and those of its draft that are accepted."""
    if not any(load.drafted_tok for load in loads):
        return {}
    generated, accepted = sum(load.generated_tok for load in loads), sum(load.accepted_tok for load in loads)
    return {"drafts/tok_per_step": _ratio(generated, generated - accepted)}


def _tokens(record: RoundRecord, *, trained_tok: int, withheld_tok: int) -> dict[str, float]:
    ended: Counter[Verdict] = Counter()
    for outcome in record.summary.outcomes:
        ended[outcome.verdict] += sum(outcome.response_lens_tok)
    diverged_tok = record.workers.diverged_tok
    discarded = record.summary.discarded_tok + withheld_tok + diverged_tok + ended[Verdict.FAILED]
    return {
        "tokens/trained": trained_tok,
        "tokens/discarded": discarded,
        "tokens/filtered": ended[Verdict.FILTERED],
        "tokens/waste_ratio": _ratio(discarded, discarded + trained_tok),
        "partial/withheld_tokens": withheld_tok,
        "partial/found_tokens": record.workers.found_tok,
        "partial/reprefilled_tokens": sum(record.workers.reprefilled_tok),
        "partial/diverged_tokens": diverged_tok,
    }


def _versions(shares: VersionShares) -> dict[str, float]:
    return {
        "partial/off_policy_token_ratio": shares.partial_share,
        "staleness/mean": _mean(shares.tokens),
        "staleness/max": max(shares.tokens, default=0),
        "age/max": max(shares.ages, default=0),
        **_histogram("staleness/tokens", shares.tokens),
    }


def _lengths(lengths: LengthBiasWindow) -> dict[str, float]:
    dispatched = lengths.dispatched
    trained_tok, dispatched_tok = mean_tok(lengths.trained), mean_tok(dispatched)
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
