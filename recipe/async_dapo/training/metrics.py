"""How a round becomes metrics; `metric_names.py` says what they mean."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.length_bias import LengthBiasWindow
from ..core.outcome import Verdict
from ..core.pool_records import Dispatch, Settlement
from ..core.screening import Screened
from ..core.trajectory import PromptGroup
from ..core.version_shares import VersionShares
from .metric_names import FAILURE_REASONS, PREFIX, STALENESS_BUCKETS

if TYPE_CHECKING:
    from ..rollout.reports import RoundResult

BYTES_PER_KEPT_TOKEN = 9  # id, log-prob, mask
VOTES = "pred"  # the field by which verl counts what most answers to a prompt say


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """All that a step's rollout leaves to be measured."""

    result: "RoundResult"
    dispatch: Dispatch
    settlement: Settlement
    ledger: Mapping[str, int]
    num_gen_batches: float
    groups_to_hold: int
    holds_less: bool  # for async_dapo.max_partial_share
    valid_share: float
    pool_size: int | None
    staleness_bound: int | None
    withheld_tok: int
    versions: VersionShares
    seq_lens_tok: Sequence[int]  # prompt and response of each trained trajectory
    buffered: Sequence[PromptGroup]
    lengths: LengthBiasWindow
    screened: Screened
    skipped: int
    known_prompts: int


def round_metrics(record: RoundRecord) -> dict[str, float]:
    """The step's metrics. Keys are those of `METRICS`, prefixed."""
    values: dict[str, float] = {f"ledger/{term}": count for term, count in record.ledger.items()}
    for part in (_round, _stop, _screening, _failures, _load, _concurrency, _tokens, _partial, _versions, _lengths):
        values |= part(record)
    values |= {f"calls/{name}": value for name, value in record.result.workers.calls.figures().items()}
    values["calls/lost_loops"] = record.dispatch.lost_loops
    values["calls/waiting_max"] = record.result.summary.waiting_for_calls_max
    values |= {f"turns/{name}": value for name, value in record.result.workers.turns.figures().items()}
    return {PREFIX + name: float(value) for name, value in values.items()}


def _round(record: RoundRecord) -> dict[str, float]:
    summary = record.result.summary
    valid = sum(outcome.verdict is Verdict.VALID for outcome in summary.outcomes)
    alike = record.settlement.filtered + record.screened.groups
    return {
        "round/gen_batches": record.num_gen_batches,
        "round/groups_to_hold": record.groups_to_hold,
        "round/started_groups": len(summary.start_order),
        "round/ended_trajectories": summary.ended_trajectories,
        "round/certain_groups": summary.certain_groups,
        "round/rollout_s": record.result.rollout_s,
        "round/trained_groups": len(record.settlement.trained_uids),
        "filter/rejected_groups": record.settlement.filtered,
        "filter/valid_share": record.valid_share,
        "filter/rejected_ratio": _ratio(alike, alike + valid),
    }


def _stop(record: RoundRecord) -> dict[str, float]:
    return {
        "early_stop/stopped_early": bool(record.result.summary.taken_unreported),
        "early_stop/stop_latency_s": record.result.stop_latency_s,
        "early_stop/interrupted_groups": len(record.result.summary.taken_unreported),
        "early_stop/requeued_groups": record.settlement.requeued,
        "early_stop/redrawn_groups": len(record.settlement.redrawn_uids),
        "early_stop/surplus_groups": record.settlement.surplus,
        "early_stop/lost_reports": record.settlement.lost_reports,
    }


def _screening(record: RoundRecord) -> dict[str, float]:
    screened = record.screened
    return {
        "screening/screened_groups": screened.groups,
        "screening/saved_tokens": screened.saved_tok,
        "screening/kept_groups": screened.kept,
        "screening/kept_valid_groups": screened.kept_valid,
        "selection/skipped_prompts": record.skipped,
        "selection/known_prompts": record.known_prompts,
    }


def _failures(record: RoundRecord) -> dict[str, float]:
    failed = record.settlement.failed
    return {
        "failure/groups": sum(failed.values()),
        **{f"failure/{reason}": failed.get(reason, 0) for reason in FAILURE_REASONS},
        "failure/reward_retries": record.result.workers.reward_calls.retries,
        "failure/reward_timeouts": record.result.workers.reward_calls.timeouts,
        "failure/killed_reward_processes": record.result.workers.reward_calls.killed_processes,
    }


def _load(record: RoundRecord) -> dict[str, float]:
    balancer = record.result.balancer
    most_s = balancer.inflight_max * record.result.rollout_s
    return {
        "load_balancer/requests": balancer.acquired,
        "load_balancer/servers": balancer.servers,
        "load_balancer/lost_servers": balancer.lost_servers,
        "load_balancer/wait_s/mean": _ratio(balancer.wait_s_sum, balancer.acquired),
        "load_balancer/wait_s/max": balancer.wait_s_max,
        "load_balancer/inflight/max": balancer.inflight_max,
        "load_balancer/idle_ratio": _ratio(max(0.0, most_s - balancer.busy_s), most_s),
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
    discarded = interrupted + retired + record.withheld_tok + record.result.workers.diverged_tok + ended[Verdict.FAILED]
    return {
        "tokens/trained": trained,
        "tokens/discarded": discarded,
        "tokens/filtered": ended[Verdict.FILTERED],
        "tokens/screened": ended[Verdict.SCREENED],
        "tokens/waste_ratio": _ratio(discarded, discarded + trained),
    }


def _partial(record: RoundRecord) -> dict[str, float]:
    ages, reprefilled = record.versions.ages, record.result.workers.reprefilled_tok
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
        "partial/diverged_tokens": record.result.workers.diverged_tok,
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


def round_line(step: int, result: "RoundResult", metrics: Mapping[str, float]) -> str:
    """How the round of a step ended."""
    ledger = {key.rsplit("/", 1)[1]: int(value) for key, value in metrics.items() if "/ledger/" in key}
    return (
        f"step {step}: {result.summary.stop_reason} after {result.rollout_s:.2f} s, "
        f"stop latency {1000 * result.stop_latency_s:.1f} ms, ledger {ledger}"
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


def fields_to_average(rewards: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """What verl can average of the fields that validation's answers were rewarded with: numbers in every answer that
    has them; and `pred`, if its values can be counted as votes.

    Args:
        rewards: field -> its value in each answer; None in those without it.
    """

    def fits(name: str, value: Any) -> bool:
        return value is None or isinstance(value, Real | np.bool_) or (name == VOTES and isinstance(value, str))

    return {name: values for name, values in rewards.items() if all(fits(name, value) for value in values)}
