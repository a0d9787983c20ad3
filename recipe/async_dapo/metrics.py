"""Every metric the recipe logs: names, meaning, and how a round becomes them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .core.length_bias import LengthBiasWindow
from .core.pool import Settlement

if TYPE_CHECKING:
    from .manager import RoundResult

PREFIX = "async_dapo/"

# Name without the prefix -> meaning. The README's table is generated from this; a test refuses other keys.
METRICS: dict[str, str] = {
    "ledger/drawn": "prompt groups drawn since the start of the run [groups]",
    "ledger/trained": "of these: trained on [groups]",
    "ledger/filtered": "of these: dropped because their metric does not vary [groups]",
    "ledger/failed": "of these: dropped because a trajectory failed for good [groups]",
    "ledger/retired": "of these: given up because they would have become too stale [groups]",
    "ledger/waiting": "of these: waiting to be generated [groups]",
    "ledger/buffered": "of these: kept with what they have generated [groups]",
    "round/gen_batches": "times prompts were drawn in this step [count]",
    "round/started_groups": "groups that were started or resumed in this step [groups]",
    "round/rollout_s": "from the opening of the round to the last worker's report [s]",
    "early_stop/stopped_early": "1 if the stop interrupted something, else 0",
    "early_stop/stop_latency_s": "from the report that met the stop rule to all engines idle [s]",
    "early_stop/interrupted_groups": "groups that the stop interrupted [groups]",
    "early_stop/requeued_groups": "of these: queued again from the start [groups]",
    "early_stop/surplus_groups": "valid groups kept for the next step [groups]",
    "early_stop/lost_reports": "started groups that no worker gave back; queued again [groups]",
    "filter/rejected_groups": "groups whose metric does not vary, in this step [groups]",
    "filter/rejected_ratio": "share of them among the groups that were judged in this step [0-1]",
    "failure/groups": "groups dropped in this step because a trajectory failed for good [groups]",
    "failure/reward_error": "of these: the reward function raised [groups]",
    "failure/reward_timeout": "of these: the reward function did not answer in time [groups]",
    "failure/reward_not_finite": "of these: the reward or the metric was no finite number [groups]",
    "failure/generation_error": "of these: the agent loop or the engine refused the prompt [groups]",
    "failure/reward_retries": "reward calls that were repeated in this step [count]",
    "load_balancer/requests": "leases granted in this step [requests]",
    "load_balancer/wait_s/mean": "time a request waited for a server [s]",
    "load_balancer/wait_s/max": "longest time a request waited for a server [s]",
    "load_balancer/inflight/max": "most requests in flight at once [requests]",
    "tokens/trained": "generated tokens in this step's batch [tokens]",
    "tokens/discarded": "tokens of interrupted trajectories that were thrown away in this step [tokens]",
    "tokens/filtered": "tokens of groups that the filter removed in this step [tokens]",
    "tokens/waste_ratio": "thrown-away tokens over thrown-away plus trained ones, in this step [0-1]",
    "length/trained/mean": "response length of trained groups over the sliding window [tokens]",
    "length/dispatched/mean": "response length of all groups that could have been trained, same window [tokens]",
    "length/trained_to_dispatched": "ratio of the two: below 1, training prefers short answers",
}

FAILURE_REASONS = ("reward_error", "reward_timeout", "reward_not_finite", "generation_error")


def round_metrics(
    result: "RoundResult",
    settlement: Settlement,
    ledger: Mapping[str, int],
    tags: Sequence[Mapping[str, Any]],
    *,
    num_gen_batches: int,
    lengths: LengthBiasWindow,
) -> dict[str, float]:
    """The step's metrics. Keys are those of `METRICS`, prefixed."""
    summary, balancer = result.summary, result.balancer
    failed = sum(settlement.failed.values())
    valid = sum(outcome.verdict == "valid" for outcome in summary.outcomes)
    trained_tok = sum(tag["response_len"] for tag in tags)
    filtered_tok = sum(
        sum(outcome.response_lens_tok) for outcome in summary.outcomes if outcome.verdict == "filtered"
    )
    values = {f"ledger/{term}": count for term, count in ledger.items()} | {
        "round/gen_batches": num_gen_batches,
        "round/started_groups": len(summary.start_order),
        "round/rollout_s": result.rollout_s,
        "early_stop/stopped_early": float(bool(result.unfinished)),
        "early_stop/stop_latency_s": result.stop_latency_s,
        "early_stop/interrupted_groups": len(result.unfinished),
        "early_stop/requeued_groups": settlement.requeued,
        "early_stop/surplus_groups": settlement.surplus,
        "early_stop/lost_reports": settlement.lost_reports,
        "filter/rejected_groups": settlement.filtered,
        "filter/rejected_ratio": _ratio(settlement.filtered, settlement.filtered + valid),
        "failure/groups": failed,
        **{f"failure/{reason}": settlement.failed.get(reason, 0) for reason in FAILURE_REASONS},
        "failure/reward_retries": result.reward_retries,
        "load_balancer/requests": balancer.acquired,
        "load_balancer/wait_s/mean": _ratio(balancer.wait_s_sum, balancer.acquired),
        "load_balancer/wait_s/max": balancer.wait_s_max,
        "load_balancer/inflight/max": balancer.inflight_max,
        "tokens/trained": trained_tok,
        "tokens/discarded": settlement.discarded_tok,
        "tokens/filtered": filtered_tok,
        "tokens/waste_ratio": _ratio(settlement.discarded_tok, settlement.discarded_tok + trained_tok),
        "length/trained/mean": lengths.trained_mean_tok,
        "length/dispatched/mean": lengths.dispatched_mean_tok,
        "length/trained_to_dispatched": _ratio(lengths.trained_mean_tok, lengths.dispatched_mean_tok),
    }
    return {PREFIX + name: float(value) for name, value in values.items()}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
