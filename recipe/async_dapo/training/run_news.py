"""What a run has to say beside its metrics: why groups failed, engines and trainer over time, a few responses."""

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from transfer_queue import KVBatchMeta
from transformers import PreTrainedTokenizerBase

from .. import store
from ..core.load_samples import PackedSamples
from ..core.outcome import CauseCounts
from ..core.spans import Spans
from ..report.responses import SAMPLED, SampledResponse, pieces_of
from ..report.timeline import StepTimeline
from ..rollout.reports import RoundResult
from .metrics import concurrency_line

logger = logging.getLogger(__name__)

TOLD_CHANGE = 0.1  # of the places in all engines


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
        self._told_places = 0.0

    def observe(self, step: int, result: RoundResult, *, pool_size: int | None) -> None:
        """A round has closed. A line says what may be in flight next, and why; it is shown where that has changed.

        Args:
            pool_size: of that round; None = lanes bounded it.
        """
        places = result.balancer.concurrency["places"]
        is_news = abs(places - self._told_places) > TOLD_CHANGE * self._told_places
        self._told_places = places if is_news else self._told_places
        logger.log(logging.INFO if is_news else logging.DEBUG, concurrency_line(step, result, pool_size))
        self._samples = {server: load.samples for server, load in result.balancer.loads.items() if load.samples}
        self._causes.update(self._cause_counts.count(result.summary.outcomes))

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


def _origins(
    token_ids: list[int], versions: list[int], tokenizer: PreTrainedTokenizerBase
) -> list[tuple[int | None, int, str]]:
    """Neighbouring tokens of one policy version, -1 for those that none sampled: version, count, text."""
    origins = []
    for version, pairs in groupby(zip(versions, token_ids, strict=True), key=lambda pair: pair[0]):
        ids = [token_id for _, token_id in pairs]
        origins.append((None if version < 0 else version, len(ids), tokenizer.decode(ids)))
    return origins
