"""Every metric the recipe logs: names, meaning, and how a round becomes them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from ..core.length_bias import LengthBiasWindow
from ..core.pool_records import Dispatch, Settlement
from ..core.trajectory import PromptGroup, Verdict
from ..core.version_shares import VersionShares
from .importance_sampling import version_statistics

if TYPE_CHECKING:
    from ..rollout.manager import RoundResult

PREFIX = "async_dapo/"
STALENESS_BUCKETS = ("0", "1", "2", "3", "4_plus")
BYTES_PER_KEPT_TOKEN = 9  # id, log-prob, mask
FAILURE_REASONS = ("reward_error", "reward_timeout", "reward_not_finite", "generation_error")

# Name without the prefix -> meaning. The README's table is generated from this; a test refuses other keys.
METRICS: dict[str, str] = {
    "ledger/drawn": "prompt groups drawn since the start of the run [groups]",
    "ledger/trained": "of these: trained on [groups]",
    "ledger/filtered": "of these: dropped because their metric does not vary [groups]",
    "ledger/failed": "of these: dropped because a trajectory failed for good [groups]",
    "ledger/retired": "of these: given up because they would have become too stale; drawn again [groups]",
    "ledger/waiting": "of these: waiting to be generated [groups]",
    "ledger/buffered": "of these: kept with what they have generated [groups]",
    "round/gen_batches": "prompts drawn in this step over over_sampling_batch_size, the top-up counted as 1 [batches]",
    "round/groups_to_hold": "over-sampling target at the start of the next step [groups]",
    "round/started_groups": "groups that were started or resumed in this step [groups]",
    "round/ended_trajectories": "trajectories that ended in this step, or ended before and were still unscored [count]",
    "round/rollout_s": "from the opening of the round to the last worker's report [s]",
    "early_stop/stopped_early": "1 if the stop interrupted something, else 0",
    "early_stop/stop_latency_s": "from the report that met the stop rule until every request is back [s]",
    "early_stop/interrupted_groups": "groups that the stop interrupted [groups]",
    "early_stop/requeued_groups": "of these: queued again from the start [groups]",
    "early_stop/surplus_groups": "valid groups kept for the next step [groups]",
    "early_stop/lost_reports": "started groups that no worker gave back; queued again [groups]",
    "filter/rejected_groups": "groups whose metric does not vary, in this step [groups]",
    "filter/valid_share": "share of groups that is expected to be valid in the next step; 1 where "
    "over_sampling_batch_size is a number [0-1]",
    "filter/rejected_ratio": "share of them among the groups that were judged in this step [0-1]",
    "failure/groups": "groups dropped in this step because a trajectory failed for good [groups]",
    "failure/reward_error": "of these: the reward function raised [groups]",
    "failure/reward_timeout": "of these: the reward function did not answer in time [groups]",
    "failure/reward_not_finite": "of these: the reward or the metric was no finite number [groups]",
    "failure/generation_error": "of these: the agent loop or the engine refused the prompt [groups]",
    "failure/reward_retries": "reward calls that were repeated in this step [count]",
    "failure/reward_timeouts": "reward calls that were not answered in time, in this step [count]",
    "failure/killed_reward_processes": "reward processes killed in this step for such a call, or ended by it; replaced "
    "[count]",
    "load_balancer/requests": "leases granted in this step [requests]",
    "load_balancer/servers": "servers that generate, at the end of the round [servers]",
    "load_balancer/lost_servers": "servers that died, or were ended because they did not answer, since the start of "
    "the run [servers]",
    "load_balancer/wait_s/mean": "time a request waited for a server [s]",
    "load_balancer/wait_s/max": "longest time a request waited for a server [s]",
    "load_balancer/inflight/max": "most requests in flight at once [requests]",
    "load_balancer/idle_ratio": "share of request slots left empty over the round, of the most in flight at once [0-1]",
    "concurrency/pool_size": "trajectories that could be unfinished at once in this step; 0 = lanes bound them "
    "[trajectories]",
    "concurrency/places": "requests that the engines have room for, in the next step [requests]",
    "concurrency/staleness_bound": "trajectories in flight that max_staleness allows, in the next step; 0 = no limit "
    "[trajectories]",
    "concurrency/kv_share": "share of the engines' KV cache that is to be filled in the next step [0-1]",
    "concurrency/context_tok": "KV cache that a request is expected to take on average in the next step [tokens]",
    "concurrency/slowest_speed": "of the slowest server, over the median one's, as its places follow it [0-1]",
    "concurrency/steered": "times that a server's places were changed within this step [count]",
    "concurrency/kv_peak": "largest share of a server's KV cache in use in this step [0-1]",
    "concurrency/waiting_max": "most requests that waited in a server's engine at once in this step [requests]",
    "concurrency/preemptions": "requests that engines set back for want of KV cache in this step [count]",
    "concurrency/server_throughput": "generated by a server while it had requests, in this step [tokens/s]",
    "tokens/trained": "generated tokens in this step's batch, without withheld ones [tokens]",
    "tokens/discarded": "tokens thrown away in this step: interrupted without being kept, retired, withheld, diverged, "
    "or of failed groups [tokens]",
    "tokens/filtered": "tokens of groups that the filter removed in this step [tokens]",
    "tokens/waste_ratio": "thrown-away tokens over thrown-away plus trained ones, in this step [0-1]",
    "partial/off_policy_token_ratio": "share of the batch's tokens from older policy versions [0-1]",
    "partial/resumed_groups": "groups that were continued from earlier steps in this one [groups]",
    "partial/resumed_ratio": "share of the batch's trajectories that were carried over at least once [0-1]",
    "partial/retired_groups": "groups given up in this step because they were too stale [groups]",
    "partial/withheld_tokens": "too stale tokens taken out of this step's loss [tokens]",
    "partial/reprefilled_tokens": "context tokens computed again for continued requests in this step [tokens]",
    "partial/reprefill_attention_ratio": "their share of attention work: sum of squared contexts, re-prefilled over "
    "re-prefilled plus trained [0-1]",
    "partial/diverged_tokens": "recorded tokens dropped because an agent loop, when resumed, took another way or ended "
    "before them [tokens]",
    "partial/buffer_tokens": "tokens kept in unfinished groups for the next step [tokens]",
    "partial/buffer_bytes": "memory of these tokens with log-probs and masks [bytes]",
    "staleness/mean": "staleness of the batch's tokens, withheld ones included [versions]",
    "staleness/max": "staleness of the batch's oldest token, withheld ones included [versions]",
    **{
        f"staleness/tokens/{name}": f"share of the batch's tokens with staleness {name} [0-1]"
        for name in STALENESS_BUCKETS
    },
    **{
        f"staleness/trajectories/{name}": f"share of trajectories whose oldest token has staleness {name} [0-1]"
        for name in STALENESS_BUCKETS
    },
    "age/mean": "rounds the batch's trajectories were carried over unfinished [rounds]",
    "age/max": "largest of them [rounds]",
    **{
        f"age/trajectories/{name}": f"share of the batch's trajectories with age {name} [0-1]"
        for name in STALENESS_BUCKETS
    },
    "length/trained/mean": "response length of trained groups over the sliding window [tokens]",
    "length/dispatched/mean": "response length of all groups that could have been trained, each with its longest "
    "attempt, same window [tokens]",
    "length/trained_to_dispatched": "ratio of the two: below 1, training prefers short answers",
    "length/trained/p50": "median response length of trained groups over the window [tokens]",
    "length/trained/p90": "90 % quantile [tokens]",
    "length/dispatched/p50": "median response length of dispatched groups over the window [tokens]",
    "length/dispatched/p90": "90 % quantile [tokens]",
    **{
        f"importance/{scope}/{name}": f"{meaning}; {about}"
        for scope, about in [
            ("overall", "all tokens of the loss, rejected ones included"),
            *((f"staleness_{bucket}", f"tokens with staleness {bucket}") for bucket in STALENESS_BUCKETS),
        ]
        for name, meaning in {
            "ess_ratio": "effective sample size of the token ratios pi_prox / mu over their number [0-1]",
            "renyi2": "exponentiated Renyi-2 divergence of pi_prox from mu",
            "ratio_mean": "mean of pi_prox / mu",
            "ratio_max": "largest pi_prox / mu",
            "k3_kl": "k3 estimate of KL(mu || pi_prox) [nats per token]",
        }.items()
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """All that a step's rollout leaves to be measured."""

    result: "RoundResult"
    dispatch: Dispatch
    settlement: Settlement
    ledger: Mapping[str, int]
    num_gen_batches: float
    groups_to_hold: int
    valid_share: float
    pool_size: int | None
    staleness_bound: int | None
    withheld_tok: int
    versions: VersionShares
    seq_lens_tok: Sequence[int]  # prompt and response of each trained trajectory
    buffered: Sequence[PromptGroup]
    lengths: LengthBiasWindow


def round_metrics(record: RoundRecord) -> dict[str, float]:
    """The step's metrics. Keys are those of `METRICS`, prefixed."""
    values: dict[str, float] = {f"ledger/{term}": count for term, count in record.ledger.items()}
    for part in (_round, _stop, _failures, _load, _concurrency, _tokens, _partial, _versions, _lengths):
        values |= part(record)
    return {PREFIX + name: float(value) for name, value in values.items()}


def _round(record: RoundRecord) -> dict[str, float]:
    summary = record.result.summary
    valid = sum(outcome.verdict is Verdict.VALID for outcome in summary.outcomes)
    return {
        "round/gen_batches": record.num_gen_batches,
        "round/groups_to_hold": record.groups_to_hold,
        "round/started_groups": len(summary.start_order),
        "round/ended_trajectories": summary.ended_trajectories,
        "round/rollout_s": record.result.rollout_s,
        "filter/rejected_groups": record.settlement.filtered,
        "filter/valid_share": record.valid_share,
        "filter/rejected_ratio": _ratio(record.settlement.filtered, record.settlement.filtered + valid),
    }


def _stop(record: RoundRecord) -> dict[str, float]:
    return {
        "early_stop/stopped_early": bool(record.result.summary.taken_unreported),
        "early_stop/stop_latency_s": record.result.stop_latency_s,
        "early_stop/interrupted_groups": len(record.result.summary.taken_unreported),
        "early_stop/requeued_groups": record.settlement.requeued,
        "early_stop/surplus_groups": record.settlement.surplus,
        "early_stop/lost_reports": record.settlement.lost_reports,
    }


def _failures(record: RoundRecord) -> dict[str, float]:
    failed = record.settlement.failed
    return {
        "failure/groups": sum(failed.values()),
        **{f"failure/{reason}": failed.get(reason, 0) for reason in FAILURE_REASONS},
        "failure/reward_retries": record.result.reward_calls.retries,
        "failure/reward_timeouts": record.result.reward_calls.timeouts,
        "failure/killed_reward_processes": record.result.reward_calls.killed_processes,
    }


def _load(record: RoundRecord) -> dict[str, float]:
    balancer, rollout_s = record.result.balancer, record.result.rollout_s
    return {
        "load_balancer/requests": balancer.acquired,
        "load_balancer/servers": balancer.servers,
        "load_balancer/lost_servers": balancer.lost_servers,
        "load_balancer/wait_s/mean": _ratio(balancer.wait_s_sum, balancer.acquired),
        "load_balancer/wait_s/max": balancer.wait_s_max,
        "load_balancer/inflight/max": balancer.inflight_max,
        "load_balancer/idle_ratio": max(0.0, 1 - _ratio(balancer.busy_s, balancer.inflight_max * rollout_s)),
    }


def _concurrency(record: RoundRecord) -> dict[str, float]:
    balancer = record.result.balancer
    loads = balancer.loads.values()
    return {
        **{f"concurrency/{name}": value for name, value in balancer.concurrency.items()},
        "concurrency/pool_size": record.pool_size or 0,
        "concurrency/staleness_bound": record.staleness_bound or 0,
        "concurrency/kv_peak": max((load.kv_peak for load in loads), default=0.0),
        "concurrency/waiting_max": max((load.waiting_max for load in loads), default=0),
        "concurrency/preemptions": sum(load.preemptions for load in loads),
        "concurrency/server_throughput": _ratio(
            sum(load.generated_tok for load in loads), sum(load.busy_s for load in loads)
        ),
    }


def _tokens(record: RoundRecord) -> dict[str, float]:
    ended: Counter[Verdict] = Counter()
    for outcome in record.result.summary.outcomes:
        ended[outcome.verdict] += sum(outcome.response_lens_tok)
    trained = record.versions.tokens.total() - record.withheld_tok
    interrupted, retired = record.settlement.discarded_tok, record.dispatch.retired_tok
    discarded = interrupted + retired + record.withheld_tok + record.result.diverged_tok + ended[Verdict.FAILED]
    return {
        "tokens/trained": trained,
        "tokens/discarded": discarded,
        "tokens/filtered": ended[Verdict.FILTERED],
        "tokens/waste_ratio": _ratio(discarded, discarded + trained),
    }


def _partial(record: RoundRecord) -> dict[str, float]:
    ages, reprefilled = record.versions.ages, record.result.reprefilled_tok
    again, once = sum(n * n for n in reprefilled), sum(n * n for n in record.seq_lens_tok)
    resumed = {group.uid for group in record.dispatch.groups[: record.dispatch.resumed]}
    kept_tok = sum(group.generated_tok for group in record.buffered)
    return {
        "partial/off_policy_token_ratio": record.versions.partial_share,
        "partial/resumed_groups": len(resumed.intersection(record.result.summary.start_order)),
        "partial/resumed_ratio": _ratio(ages.total() - ages[0], ages.total()),
        "partial/retired_groups": len(record.dispatch.retired_uids),
        "partial/withheld_tokens": record.withheld_tok,
        "partial/reprefilled_tokens": sum(reprefilled),
        "partial/reprefill_attention_ratio": _ratio(again, again + once),
        "partial/diverged_tokens": record.result.diverged_tok,
        "partial/buffer_tokens": kept_tok,
        "partial/buffer_bytes": kept_tok * BYTES_PER_KEPT_TOKEN,
    }


def _versions(record: RoundRecord) -> dict[str, float]:
    shares = record.versions
    return {
        "staleness/mean": _mean(shares.tokens),
        "staleness/max": max(shares.tokens, default=0),
        "age/mean": _mean(shares.ages),
        "age/max": max(shares.ages, default=0),
        **_histogram("staleness/tokens", shares.tokens),
        **_histogram("staleness/trajectories", shares.trajectories),
        **_histogram("age/trajectories", shares.ages),
    }


def _lengths(record: RoundRecord) -> dict[str, float]:
    trained, dispatched = record.lengths.trained, record.lengths.dispatched
    return {
        "length/trained/mean": trained.mean_tok,
        "length/trained/p50": trained.quantile_tok(0.5),
        "length/trained/p90": trained.quantile_tok(0.9),
        "length/dispatched/mean": dispatched.mean_tok,
        "length/dispatched/p50": dispatched.quantile_tok(0.5),
        "length/dispatched/p90": dispatched.quantile_tok(0.9),
        "length/trained_to_dispatched": _ratio(trained.mean_tok, dispatched.mean_tok),
    }


def importance_metrics(log_ratio_BT: Tensor, version_BT: Tensor, mask_BT: Tensor, *, step: int) -> dict[str, float]:
    """Statistics of pi_prox / mu, overall and by staleness.

    Args:
        log_ratio_BT: [B, T] log pi_prox - log mu of each token, nats.
        version_BT: [B, T] policy version that sampled each token.
        mask_BT: [B, T] tokens in the loss.
    """
    bucket_BT = (step - 1 - version_BT).clamp(0, len(STALENESS_BUCKETS) - 1)
    values = {}
    for bucket, statistics in version_statistics(log_ratio_BT, bucket_BT, mask_BT).items():
        scope = "overall" if bucket == "overall" else f"staleness_{STALENESS_BUCKETS[bucket]}"
        values[f"importance/{scope}/ess_ratio"] = statistics["ess_tok"] / statistics["tokens"]
        for name in ("renyi2", "ratio_mean", "ratio_max", "k3_kl"):
            values[f"importance/{scope}/{name}"] = statistics[name]
    return {PREFIX + name: float(value) for name, value in values.items()}


def step_line(step: int, result: "RoundResult", metrics: Mapping[str, float]) -> str:
    """The one line a step logs."""
    ledger = {key.rsplit("/", 1)[1]: int(value) for key, value in metrics.items() if "/ledger/" in key}
    return (
        f"step {step}: {result.summary.stop_reason} after {result.rollout_s:.2f} s, "
        f"stop latency {1000 * result.stop_latency_s:.1f} ms, ledger {ledger}"
    )


def concurrency_line(step: int, result: "RoundResult", pool_size: int | None) -> str:
    """What the next round may have in flight, and why."""
    figures = result.balancer.concurrency
    return (
        f"step {step}: {'lanes' if pool_size is None else pool_size} in flight; next: room for {figures['places']:.0f} "
        f"({result.balancer.concurrency_reason}; {figures['kv_share']:.2f} of the KV cache at "
        f"{figures['context_tok']:.0f} tokens a request)"
    )


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
