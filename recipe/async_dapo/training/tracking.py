"""What a run tells while it goes on: a line a step in place of verl's dictionary, and the record for its report."""

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from transformers import PreTrainedTokenizerBase
from verl.utils.tracking import Tracking

from .. import store
from ..config import AsyncDAPOConfig, all_gpus, num_engines
from ..core.concurrency import PackedSamples
from ..core.outcome import CauseCounts
from ..core.staleness import EngineUpdate
from ..engines.load_balancer import LoadBalancerStats
from ..logs import log_phase, started_s
from ..record import keys
from ..record.console import Hints, Pace, step_line
from ..record.responses import SAMPLED, SampledResponse, as_markdown, pieces_of
from ..record.run_files import last_set_aside, metrics_file, set_aside
from ..record.run_record import RunDescription, RunRecorder, RunSource
from ..record.timeline import Spans, StepTimeline
from ..rollout.reports import RoundResult
from .metrics import RoundRecord

logger = logging.getLogger(__name__)

# The twelve charts that matter, for TensorBoard's tab *Custom scalars*: category -> chart -> metrics.
LAYOUT: dict[str, dict[str, tuple[str, ...]]] = {
    "Speed": {
        "Seconds of a step and of its rollout": (keys.STEP_S, keys.ROLLOUT_S),
        "Empty places in the engines": (keys.IDLE_RATIO,),
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

# Backends: verl's, and this recipe's.
CONSOLE, FILE, TENSORBOARD, WANDB = "console", "file", "tensorboard", "wandb"
RECORD, TEXTS, OVERVIEW = "async_dapo", "async_dapo_texts", "async_dapo_overview"


def custom_scalars() -> dict[str, dict[str, list]]:
    """As `SummaryWriter.add_custom_scalars` takes it."""
    return {
        category: {title: ["Multiline", list(metrics)] for title, metrics in charts.items()}
        for category, charts in LAYOUT.items()
    }


class StepLines:
    """A logger in the place of verl's console logger, which writes all metrics of a step into one line.

    Args:
        speedup: of a rehearsal: virtual seconds in a real one.
        total_steps: of the run, if that is known.
    """

    def __init__(self, speedup: float = 1.0, total_steps: int | None = None) -> None:
        self._speedup = speedup
        self._pace = None if total_steps is None else Pace(total_steps)
        self._hints = Hints()

    def log(self, data: Mapping[str, Any], step: int) -> None:
        logger.info(step_line(step, data, speedup=self._speedup, pace=self._pace))
        if keys.STEP_S in data and (hint := self._hints.of_step(step, data)) is not None:
            logger.info("step %d: hint: %s", step, hint)


class ResponseTexts:
    """Sampled responses in TensorBoard's tab *Text*."""

    def __init__(self, writer: Any, source: RunSource) -> None:
        self._writer = writer
        self._source = source

    def log(self, data: Mapping[str, Any], step: int) -> None:
        if keys.STEP_S in data:
            self._writer.add_text("responses", as_markdown(self._source.responses), step)


class WandbOverview:
    """For wandb, which makes a section of charts of what has a common prefix: the twelve charts, each by its first
    metric, and a table of sampled responses."""

    COLUMNS = ("prompt", "response", "about", "reward")

    def __init__(self, wandb: Any, source: RunSource) -> None:
        self._wandb = wandb
        self._source = source

    def log(self, data: Mapping[str, Any], step: int) -> None:
        if keys.STEP_S not in data:
            return
        charts = {title: metrics[0] for part in LAYOUT.values() for title, metrics in part.items()}
        shown = {f"overview/{title}": data[metric] for title, metric in charts.items() if metric in data}
        rows = [
            [one.prompt, "".join(piece.text for piece in one.pieces), one.about, one.reward]
            for one in self._source.responses
        ]
        self._wandb.log(shown | {"responses": self._wandb.Table(columns=list(self.COLUMNS), data=rows)}, step=step)


def keep_metrics_file(config: DictConfig, step: int) -> bytes:
    """verl's file logger overwrites its file: what is there is set aside, before the logger is made.

    Args:
        step: that the run resumes from; 0: it is a new one.

    Returns:
        The lines up to that step, which the new file begins with.
    """
    if FILE not in config.trainer.logger:
        return b""
    path = metrics_file(config.trainer.project_name, config.trainer.experiment_name)
    set_aside(path)
    earlier = last_set_aside(path)
    if step == 0 or earlier is None:
        return b""
    complete = earlier.read_bytes().rpartition(b"\n")[0].splitlines(keepends=True)
    return b"".join(line.removesuffix(b"\n") + b"\n" for line in complete if json.loads(line)["step"] <= step)


def extend(
    tracking: Tracking,
    config: DictConfig,
    options: AsyncDAPOConfig,
    source: RunSource,
    *,
    total_steps: int | None = None,
    prompts: int | None = None,
    earlier_metrics: bytes = b"",
) -> None:
    """Give verl's loggers this recipe's line and record, in place.

    Args:
        total_steps: of the whole run; None: not known.
        prompts: that verl has kept to train on; None: not known.
        earlier_metrics: lines that the file logger's file begins with.
    """
    if FILE in tracking.logger:
        tracking.logger[FILE].fp.write(earlier_metrics)
    if CONSOLE in tracking.logger:
        tracking.logger[CONSOLE] = StepLines(total_steps=total_steps)
    if TENSORBOARD in tracking.logger:
        writer = tracking.logger[TENSORBOARD].writer
        writer.add_custom_scalars(custom_scalars())
        tracking.logger[TEXTS] = ResponseTexts(writer, source)
    if WANDB in tracking.logger:
        tracking.logger[OVERVIEW] = WandbOverview(tracking.logger[WANDB], source)
    if options.report_dir is not None:
        tracking.logger[RECORD] = RunRecorder(Path(options.report_dir), describe(config, options, prompts), source)
        log_phase(f"the record of this run: {options.report_dir}")


def describe(config: DictConfig, options: AsyncDAPOConfig, prompts: int | None) -> RunDescription:
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    return RunDescription(
        name=f"{trainer.project_name}/{trainer.experiment_name}",
        system=f"{options.rollout_strategy}, {options.stop_rule}",
        started_s=started_s(),
        gpus=all_gpus(config),
        settings={
            "model": config.actor_rollout_ref.model.path,
            "prompts": prompts,
            "data.train_batch_size": options.target_valid_groups,
            "rollout.n": options.rollout_n,
            "data.max_response_length": options.max_response_length,
            "over_sampling_batch_size": str(options.over_sampling_batch_size),
            "rollout_pool_size": str(options.rollout_pool_size),
            "max_staleness": options.max_staleness,
            "engines": num_engines(config),
            "max_num_seqs": rollout.max_num_seqs * rollout.data_parallel_size,
            "rollout.gpu_memory_utilization": rollout.gpu_memory_utilization,
            "actor.optim.lr": config.actor_rollout_ref.actor.optim.lr,
        },
    )


class RunNews:
    """What a run has to say beside its metrics, collected while it trains: why groups failed, engines and trainer over
    time, a few responses. A `RunSource` of the run's record.

    Attributes:
        spans: what the trainer is at.
        responses: a few of the newest batch.
    """

    def __init__(self) -> None:
        self.spans = Spans()
        self.responses: Sequence[SampledResponse] = ()
        self._samples: defaultdict[str, list[PackedSamples]] = defaultdict(list)
        self._updates: tuple[EngineUpdate, ...] = ()
        self._cause_counts = CauseCounts()
        self._causes: Counter[tuple[str, str]] = Counter()

    def observe(self, step: int, record: RoundRecord, options: AsyncDAPOConfig) -> None:
        """A round has closed. A line says what may be in flight next, and why."""
        logger.info(_concurrency_line(step, record, options))
        self._causes.update(self._cause_counts.count(record.result.summary.outcomes))

    def observe_validation(self, result: RoundResult) -> None:
        """A validation's round has closed."""
        self.note_engines(result.balancer)
        for (reason, what), count in self._cause_counts.count(result.summary.outcomes).items():
            self._causes[f"in validation, {reason}", what] += count

    def note_engines(self, balancer: LoadBalancerStats) -> None:
        """What engines held and which weights they got, each time the load balancer was asked: in the order of time."""
        for server, load in balancer.loads.items():
            if load.samples:
                self._samples[server].append(load.samples)
        if balancer.updates is not None:
            self._updates += balancer.updates.ended

    def sample_responses(self, batch: KVBatchMeta, tokenizer: PreTrainedTokenizerBase) -> None:
        """Take a few of a batch that has its rewards; its order says nothing of them."""
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
        engines = {server: [one for part in parts for one in part.unpack()] for server, parts in self._samples.items()}
        self._samples.clear()
        updates, self._updates = self._updates, ()
        return StepTimeline(spans=self.spans.take(), engines=engines, updates=updates)


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
    """Each limit on trajectories in flight in the next round, by option name."""
    limits = {}
    if options.rollout_pool_size is None:
        limits["lanes"] = options.lanes_hold
    elif options.fixed_pool_size is not None:
        limits["rollout_pool_size"] = options.fixed_pool_size
    elif record.staleness_bound is not None:
        limits["max_staleness"] = record.staleness_bound
    held_by = "max_partial_share" if record.over_sampling.holds_less else "over_sampling_batch_size"
    places = int(record.result.balancer.concurrency["places"])
    return limits | {"engines": places, held_by: record.over_sampling.groups_to_hold * options.rollout_n}


def _origins(
    token_ids: list[int], versions: list[int], tokenizer: PreTrainedTokenizerBase
) -> list[tuple[int | None, int, str]]:
    """Neighbouring tokens of one policy version, -1 for those that none sampled: version, count, text."""
    origins = []
    for version, pairs in groupby(zip(versions, token_ids, strict=True), key=lambda pair: pair[0]):
        ids = [token_id for _, token_id in pairs]
        origins.append((None if version < 0 else version, len(ids), tokenizer.decode(ids)))
    return origins
