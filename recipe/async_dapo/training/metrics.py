"""How a round becomes metrics; `docs/metrics.md` says what each one means."""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from ..core.concurrency import EngineLoad
from ..core.mix import Mix
from ..core.outcome import Verdict
from ..core.round import RoundSummary
from ..core.staleness import VersionShares
from ..core.summed import Summed
from ..core.trajectory import RoundCounts
from ..record.keys import PREFIX, SKIPPED_UPDATE, STALENESS_BUCKETS
from ..rollout.manager import RoundRecord


def round_metrics(
    record: RoundRecord,
    versions: VersionShares,
    *,
    ledger: Mapping[str, int],
    mix: Mix,
    withheld_tok: int,
    buffered_tok: int,
) -> dict[str, float]:
    """The step's metrics, by their names.

    Args:
        versions: of the batch.
        mix: as of the next step.
        withheld_tok: too stale tokens of the batch.
        buffered_tok: of unfinished groups.
    """
    values: dict[str, float] = {f"ledger/{term}": count for term, count in ledger.items()}
    values |= _groups(record.summary) | _load(record) | _concurrency(record.balancer.loads.values())
    values |= _tokens(record, trained_tok=versions.tokens.total() - withheld_tok, withheld_tok=withheld_tok)
    values |= _versions(versions) | _turns(record.workers.counts)
    values |= {
        "round/groups_to_hold": mix.groups_to_hold,
        "round/rollout_s": record.rollout_s,
        "filter/valid_share": mix.over_sampling.valid_share,
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
    }


def _turns(counts: RoundCounts) -> dict[str, float]:
    return {
        "turns/mean": _ratio(counts.turns, counts.ended),
        "turns/tokens/mean": _ratio(counts.turns_tok, counts.turns),
        **{name: count for name, count in counts.of_extensions.items() if not isinstance(count, Summed)},
    }


def _load(record: RoundRecord) -> dict[str, float]:
    balancer = record.balancer
    most_s = balancer.inflight_max * record.rollout_s
    return {
        "load_balancer/requests": balancer.acquired,
        "load_balancer/servers": balancer.servers,
        "load_balancer/lost_servers": balancer.lost_servers,
        "load_balancer/inflight/max": balancer.inflight_max,
        "load_balancer/idle_ratio": _ratio(max(0.0, most_s - balancer.busy_s), most_s),
    }


def _concurrency(loads: Collection[EngineLoad]) -> dict[str, float]:
    return {
        "concurrency/kv_peak": max((load.kv_peak for load in loads), default=0.0),
        "concurrency/preemptions": sum(load.preemptions for load in loads),
    }


def _tokens(record: RoundRecord, *, trained_tok: int, withheld_tok: int) -> dict[str, float]:
    ended: Counter[Verdict] = Counter()
    for outcome in record.summary.outcomes:
        ended[outcome.verdict] += sum(outcome.response_lens_tok)
    counts = record.workers.counts
    discarded = record.summary.discarded_tok + withheld_tok + counts.diverged_tok + ended[Verdict.FAILED]
    return {
        "tokens/trained": trained_tok,
        "tokens/discarded": discarded,
        "tokens/filtered": ended[Verdict.FILTERED],
        "tokens/waste_ratio": _ratio(discarded, discarded + trained_tok),
        "partial/withheld_tokens": withheld_tok,
        "partial/found_tokens": counts.found_tok,
        "partial/reprefilled_tokens": counts.reprefilled_tok,
        "partial/diverged_tokens": counts.diverged_tok,
    }


def _versions(shares: VersionShares) -> dict[str, float]:
    return {
        "partial/off_policy_token_ratio": shares.partial_share,
        "staleness/mean": _mean(shares.tokens),
        "staleness/max": max(shares.tokens, default=0),
        "age/max": max(shares.ages, default=0),
        **_histogram("staleness/tokens", shares.tokens),
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


def update_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What verl says of a step's updates only in their gradient norm, a mean over them: that it has left one out."""
    return {SKIPPED_UPDATE: float(not math.isfinite(metrics.get("actor/grad_norm", 0.0)))}
