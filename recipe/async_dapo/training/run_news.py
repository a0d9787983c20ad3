"""What a run has to say beside its metrics: why groups failed, engines and trainer over time, a few responses."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from transfer_queue import KVBatchMeta
from transformers import PreTrainedTokenizerBase

from .. import store
from ..config import AsyncDAPOConfig
from ..core.load_samples import PackedSamples
from ..core.outcome import CauseCounts, GroupOutcome
from ..core.spans import Spans
from ..report.responses import SAMPLED, SampledResponse, pieces_of
from ..report.timeline import StepTimeline
from .metrics import RoundRecord

logger = logging.getLogger(__name__)


class RunNews:
    """Collected while it trains; a `RunSource` of the run's record.

    Attributes:
        spans: what the trainer is at.
        responses: a few of the newest batch.
    """

    def __init__(self) -> None:
        self.spans = Spans()
        self.responses: Sequence[SampledResponse] = ()
        self._samples: dict[str, PackedSamples] = {}
        self._cause_counts = CauseCounts()
        self._causes: Counter[tuple[str, str]] = Counter()

    def observe(self, step: int, record: RoundRecord, options: AsyncDAPOConfig) -> None:
        """A round has closed. A line says what may be in flight next, and why."""
        logger.info(_concurrency_line(step, record, options))
        loads = record.result.balancer.loads
        self._samples = {server: load.samples for server, load in loads.items() if load.samples}
        self._causes.update(self._cause_counts.count(record.result.summary.outcomes))

    def observe_validation(self, outcomes: Iterable[GroupOutcome]) -> None:
        """A validation's round has closed."""
        for (reason, what), count in self._cause_counts.count(outcomes).items():
            self._causes[f"in validation, {reason}", what] += count

    def sample_responses(self, batch: KVBatchMeta, tokenizer: PreTrainedTokenizerBase) -> None:
        """A few of a batch that has its rewards; its order says nothing of them."""
        rows = store.read_rows(batch, ["prompts", "responses", "rm_scores", "policy_versions"], most=SAMPLED)
        self.responses = [
            SampledResponse(
                prompt=tokenizer.decode(row["prompts"]),
                reward=float(row["rm_scores"].sum()),
                age=row["tag"]["age"],
                pieces=pieces_of(_origins(row["responses"].tolist(), row["policy_versions"].tolist(), tokenizer)),
            )
            for row in rows
        ]

    def take_causes(self) -> dict[str, int]:
        causes, self._causes = self._causes, Counter()
        return {f"{reason}: {what}" if what else reason: count for (reason, what), count in causes.items()}

    def take_timeline(self) -> StepTimeline:
        samples, self._samples = self._samples, {}
        engines = {server: packed.unpack() for server, packed in samples.items()}
        return StepTimeline(spans=self.spans.take(), engines=engines)


def _concurrency_line(step: int, record: RoundRecord, options: AsyncDAPOConfig) -> str:
    balancer, limits = record.result.balancer, _limits(record, options)
    least, figures = min(limits, key=limits.__getitem__), balancer.concurrency
    return (
        f"step {step}: {balancer.inflight_max} in flight; next: at most {limits[least]} by {least} "
        f"({', '.join(f'{name} {most}' for name, most in limits.items())}; engines: {balancer.concurrency_reason}, "
        f"{figures['kv_share']:.2f} of the KV cache at {figures['context_tok']:.0f} tokens a request, "
        f"slowest speed {figures['slowest_speed']:.2f}, steered {figures['steered']:.0f} times)"
    )


def _limits(record: RoundRecord, options: AsyncDAPOConfig) -> dict[str, int]:
    """What allows no more trajectories in flight in the next round -> how many it allows."""
    limits = {}
    if options.rollout_pool_size is None:
        limits["lanes"] = options.lanes_hold
    elif options.fixed_pool_size is not None:
        limits["rollout_pool_size"] = options.fixed_pool_size
    elif record.staleness_bound is not None:
        limits["max_staleness"] = record.staleness_bound
    held_by = "max_partial_share" if record.holds_less else "over_sampling_batch_size"
    places = int(record.result.balancer.concurrency["places"])
    return limits | {"engines": places, held_by: record.groups_to_hold * options.rollout_n}


def _origins(
    token_ids: list[int], versions: list[int], tokenizer: PreTrainedTokenizerBase
) -> list[tuple[int | None, int, str]]:
    """Neighbouring tokens of one policy version, -1 for those that none sampled: version, count, text."""
    origins = []
    for version, pairs in groupby(zip(versions, token_ids, strict=True), key=lambda pair: pair[0]):
        ids = [token_id for _, token_id in pairs]
        origins.append((None if version < 0 else version, len(ids), tokenizer.decode(ids)))
    return origins
