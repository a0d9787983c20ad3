"""What the lab records of a run beside the recipe's record: for the report, the planner, TensorBoard and W&B.

`async_dapo.recorder` names the class; `async_dapo_lab.train` sets it.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from transfer_queue import KVBatchMeta
from transformers import PreTrainedTokenizerBase

from ..async_dapo import store
from ..async_dapo.core.concurrency import PackedSamples
from ..async_dapo.core.staleness import EngineUpdate
from ..async_dapo.engines.load_balancer import LoadBalancerStats
from ..async_dapo.record import keys
from ..async_dapo.rollout.reports import RoundRecord
from ..async_dapo.training.recorder import Recorder
from .report.health import Hints
from .report.record import LabRecord
from .report.responses import SAMPLED, SampledResponse, as_markdown, length_lines, pieces_of
from .report.timeline import Spans, StepTimeline

logger = logging.getLogger(__name__)

TENSORBOARD, WANDB, OWN = "tensorboard", "wandb", "async_dapo_lab"  # verl's loggers, and this one
COLUMNS = ("prompt", "response", "about", "reward")  # of W&B's table

# The twelve charts that matter, for TensorBoard's tab *Custom scalars*: category -> chart -> metrics.
LAYOUT: dict[str, dict[str, tuple[str, ...]]] = {
    "Speed": {
        "Seconds of a step and of its rollout": (keys.STEP_S, keys.ROLLOUT_S),
        "Empty capacity of the engines": (keys.IDLE_RATIO,),
        "Tokens trained, filtered, thrown away": (
            keys.TOKENS_TRAINED,
            keys.TOKENS_FILTERED,
            keys.TOKENS_DISCARDED,
        ),
        "KV cache, at most": (keys.KV_PEAK,),
    },
    "Data": {
        "Filtered groups, and expected valid ones": (keys.REJECTED_RATIO, keys.VALID_SHARE),
        "Failed groups": (keys.FAILED_GROUPS,),
        "Response length, trained and dispatched": (keys.LENGTH_TRAINED, keys.LENGTH_DISPATCHED),
        "Off-policy tokens": (keys.OFF_POLICY,),
        "Staleness": (keys.STALENESS_MEAN, keys.STALENESS_MAX),
    },
    "Learning": {
        "Reward in the batch": (keys.REWARD,),
        "Effective sample size": (keys.ESS_RATIO,),
        "Gradient norm": (keys.GRAD_NORM,),
    },
}


def custom_scalars() -> dict[str, dict[str, list]]:
    """As `SummaryWriter.add_custom_scalars` takes it."""
    return {
        category: {title: ["Multiline", list(metrics)] for title, metrics in charts.items()}
        for category, charts in LAYOUT.items()
    }


class LabRecorder(Recorder):
    """Records engines and trainer over time, a few responses and all lengths, and logs hints.

    It is one of verl's loggers: with every step it writes what it has collected.

    Attributes:
        responses: a few of the newest batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.responses: Sequence[SampledResponse] = ()
        self._spans, self._hints = Spans(), Hints()
        self._samples: defaultdict[str, list[PackedSamples]] = defaultdict(list)
        self._updates: tuple[EngineUpdate, ...] = ()
        self._lengths: list[Mapping[str, Any]] = []
        self._record: LabRecord | None = None
        self._tensorboard: Any = None
        self._wandb: Any = None

    def round_closed(self, step: int, record: RoundRecord) -> None:
        super().round_closed(step, record)
        self._lengths += length_lines(step, record.summary.outcomes)

    def engines_asked(self, balancer: LoadBalancerStats) -> None:
        for server, load in balancer.loads.items():
            if load.samples:
                self._samples[server].append(load.samples)
        self._updates += balancer.updates

    def begin_phase(self, name: str) -> None:
        self._spans.begin(name, time.time())

    def end_phase(self) -> None:
        self._spans.end(time.time())

    def batch_scored(self, batch: KVBatchMeta, tokenizer: PreTrainedTokenizerBase) -> None:
        rows = store.read_rows(batch, ["prompts", "responses", "rm_scores", "policy_versions"], most=SAMPLED)
        self.responses = [
            SampledResponse(
                prompt=tokenizer.decode(row["prompts"]),
                reward=float(row["rm_scores"].sum()),
                age=row["tag"]["age"],
                pieces=pieces_of(list(_origins(row["responses"].tolist(), row["policy_versions"].tolist(), tokenizer))),
            )
            for row in rows
        ]

    def join(self, loggers: dict[str, Any]) -> None:
        if TENSORBOARD in loggers:
            self._tensorboard = loggers[TENSORBOARD].writer
            self._tensorboard.add_custom_scalars(custom_scalars())
        self._wandb = loggers.get(WANDB)
        loggers[OWN] = self

    def begin_record(self, folder: Path, *, started_s: float, first_step: int) -> None:
        self._record = LabRecord(folder, started_s=started_s, first_step=first_step)

    def log(self, data: Mapping[str, Any], step: int) -> None:
        is_step = keys.STEP_S in data
        taken, (lengths, self._lengths) = self._take_timeline(), (self._lengths, [])
        if self._record is not None:
            self._record.add(step, taken, lengths=lengths, sampled=self.responses if is_step else None)
        if not is_step:
            return
        if (hint := self._hints.of_step(step, data)) is not None:
            logger.info("step %d: hint: %s", step, hint)
        if self._tensorboard is not None:
            self._tensorboard.add_text("responses", as_markdown(self.responses), step)
        if self._wandb is not None:
            self._wandb.log(self._overview(data), step=step)

    def _take_timeline(self) -> StepTimeline:
        engines = {server: [one for part in parts for one in part.unpack()] for server, parts in self._samples.items()}
        self._samples.clear()
        updates, self._updates = self._updates, ()
        return StepTimeline(spans=self._spans.take(), engines=engines, updates=updates)

    def _overview(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """W&B makes a section of charts of what has a common prefix: the twelve charts, each by its first metric, and a
        table of sampled responses.
        """
        charts = {title: metrics[0] for part in LAYOUT.values() for title, metrics in part.items()}
        shown = {f"overview/{title}": data[metric] for title, metric in charts.items() if metric in data}
        rows = [
            [one.prompt, "".join(piece.text for piece in one.pieces), one.about, one.reward] for one in self.responses
        ]
        return shown | {"responses": self._wandb.Table(columns=list(COLUMNS), data=rows)}


def _origins(
    token_ids: list[int], versions: list[int], tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[int | None, int, str]]:
    """Neighbouring tokens of one policy version, -1 for those that none sampled: version, count, text."""
    for version, pairs in groupby(zip(versions, token_ids, strict=True), key=lambda pair: pair[0]):
        ids = [token_id for _, token_id in pairs]
        yield None if version < 0 else version, len(ids), tokenizer.decode(ids)
