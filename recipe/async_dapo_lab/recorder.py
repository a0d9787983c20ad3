"""What the lab records of a run beside the recipe's record: for the report and the planner.

`async_dapo.recorder` names the class; `async_dapo_lab.train` sets it.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transfer_queue import KVBatchMeta

from ..async_dapo import store
from ..async_dapo.config.extensions import AGENTS
from ..async_dapo.config.options import AsyncDAPOConfig
from ..async_dapo.extensions.record.recorder import Recorder
from ..async_dapo.record import keys
from ..async_dapo.rollout.manager import RoundRecord
from ..async_dapo.rollout.packed_output import TIMED
from ..async_dapo.training.validation import ValidationAnswers
from .report.answers import sampled
from .report.calls import call_line
from .report.episodes import Episode
from .report.health import Hints
from .report.lengths import length_lines
from .report.record import LabRecord
from .report.samples import PackedSamples, SampledLoad
from .report.timeline import Spans, StepTimeline, together

logger = logging.getLogger(__name__)

MOST_EPISODE_TOK = 40_000  # of a step [tokens]: some 0.6 MB


class LabRecorder(Recorder):
    """Records engines and trainer over time, all lengths and a few answers, and logs hints: with every step, what it
    has collected.
    """

    meter = f"{__package__}.sampling_meter.SamplingMeter"

    def __init__(self, options: AsyncDAPOConfig) -> None:
        super().__init__(options)
        self._spans, self._hints = Spans(), Hints()
        self._samples: defaultdict[str, list[PackedSamples]] = defaultdict(list)
        self._lengths: list[Mapping[str, Any]] = []
        self._answers: list[Mapping[str, Any]] = []
        self._episodes: list[Mapping[str, Any]] = []
        self._calls: list[Mapping[str, Any]] = []
        self._waiting_for_calls: list[tuple[float, int]] = []
        self._record: LabRecord | None = None

    def ended(self, record: RoundRecord) -> None:
        self._sample(record)

    def validation_closed(self, record: RoundRecord) -> None:
        super().validation_closed(record)
        self._sample(record)

    def batch_made(self, step: int, record: RoundRecord, batch: KVBatchMeta) -> None:
        super().batch_made(step, record, batch)
        self._lengths += length_lines(step, record.summary.outcomes)
        counts = record.workers.counts.of_extensions.get(AGENTS)  # its `CallCounts`
        if counts is not None:
            self._waiting_for_calls += together(counts.idle.values())
            self._calls += filter(None, [call_line(step, counts.by_name)])
        self._episodes = [episode.line() for episode in _episodes(step, batch)]

    def _sample(self, record: RoundRecord) -> None:
        """What engines held since they were asked last."""
        for server, load in record.balancer.loads.items():
            if isinstance(load, SampledLoad):
                self._samples[server].append(load.samples)

    def validated(self, answers: ValidationAnswers) -> None:
        self._answers = list(sampled(answers.prompts, answers.texts, answers.scores))

    def begin_phase(self, name: str | None) -> None:
        if name is None:
            self._spans.end(time.time())
        else:
            self._spans.begin(name, time.time())

    def begin_record(self, folder: Path, *, started_s: float, first_step: int) -> None:
        self._record = LabRecord(folder, started_s=started_s, first_step=first_step)

    def log(self, data: Mapping[str, Any], step: int) -> None:
        super().log(data, step)
        taken, (lengths, self._lengths) = self._take_timeline(), (self._lengths, [])
        answers, self._answers = self._answers, []
        episodes, self._episodes = self._episodes, []
        calls, self._calls = self._calls, []
        if self._record is not None:
            self._record.add(step, taken, lengths=lengths, answers=answers, episodes=episodes, calls=calls)
        if keys.STEP_S in data and (hint := self._hints.of_step(step, data)) is not None:
            logger.info("step %d: hint: %s", step, hint)

    def _take_timeline(self) -> StepTimeline:
        engines = {server: [one for part in parts for one in part.unpack()] for server, parts in self._samples.items()}
        self._samples.clear()
        waiting, self._waiting_for_calls = self._waiting_for_calls, []
        return StepTimeline(spans=self._spans.take(), engines=engines, waiting_for_calls=waiting)


def _episodes(step: int, batch: KVBatchMeta) -> Iterator[Episode]:
    """Of the batch's first group, whose trajectories are as likely as any: batches are sorted by random ids."""
    uid = batch.keys[0].rsplit("_", 2)[0]
    rows: list[tuple[str, Any]] = []
    room_tok = MOST_EPISODE_TOK
    for key, tag in zip(batch.keys, batch.tags, strict=True):
        room_tok -= tag["seq_len"]
        if key.rsplit("_", 2)[0] != uid or (rows and room_tok < 0):
            break
        rows.append((key, tag))
    group = KVBatchMeta(partition_id=batch.partition_id, keys=[key for key, _ in rows], tags=[tag for _, tag in rows])
    read = store.read_fields(group, ["prompts", "responses", "policy_versions", "rollout_log_probs", "rm_scores"])
    timed = [fields.get(TIMED, []) for fields in store.read(group, ["extra_fields"]).pop("extra_fields").tolist()]
    for index, (key, tag) in enumerate(rows):
        prompt_T, response_T, versions_T, log_probs_T, scores_T = (read[name][index] for name in read)
        yield Episode(
            uid=key,
            step=step,
            prompt_ids=prompt_T.tolist(),
            response_ids=response_T.tolist(),
            versions=versions_T.tolist(),
            log_probs=log_probs_T.tolist(),
            reward=float(scores_T.sum()),
            age=tag["age"],
            timed=timed[index],
        )
