"""What a run tells while it goes on: a line a step in place of verl's dictionary, and the record for its report."""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from verl.utils.tracking import Tracking

from ..config import AsyncDAPOConfig
from ..files.run_files import last_set_aside, set_aside
from ..logs import log_phase, started_s
from ..report import keys
from ..report.health import Hints
from ..report.layout import LAYOUT, custom_scalars
from ..report.record import RunDescription, RunRecorder, RunSource
from ..report.responses import as_markdown
from ..report.step_line import Pace, step_line

logger = logging.getLogger(__name__)

# Backends: verl's, and this recipe's.
CONSOLE, FILE, TENSORBOARD, WANDB = "console", "file", "tensorboard", "wandb"
RECORD, TEXTS, OVERVIEW = "async_dapo", "async_dapo_texts", "async_dapo_overview"


class StepLines:
    """In the place of verl's console logger, which writes all metrics of a step into one line.

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
    path = metrics_file(config)
    set_aside(path)
    earlier = last_set_aside(path)
    if step == 0 or earlier is None:
        return b""
    complete = earlier.read_bytes().rpartition(b"\n")[0].splitlines(keepends=True)
    return b"".join(line.removesuffix(b"\n") + b"\n" for line in complete if json.loads(line)["step"] <= step)


def metrics_file(config: DictConfig) -> Path:
    """Where verl's file logger writes."""
    if (named := os.environ.get("VERL_FILE_LOGGER_PATH")) is not None:
        return Path(named)
    root = Path(os.environ.get("VERL_FILE_LOGGER_ROOT", ".")).expanduser()
    return root / config.trainer.project_name / f"{config.trainer.experiment_name}.jsonl"


def extend(
    tracking: Tracking,
    config: DictConfig,
    options: AsyncDAPOConfig,
    source: RunSource,
    *,
    total_steps: int | None = None,
    earlier_metrics: bytes = b"",
) -> None:
    """Give verl's loggers this recipe's line and record, in place.

    Args:
        total_steps: of the whole run; None: not known.
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
        tracking.logger[RECORD] = RunRecorder(Path(options.report_dir), describe(config, options), source)
        log_phase(f"the record of this run: {options.report_dir}")


def describe(config: DictConfig, options: AsyncDAPOConfig) -> RunDescription:
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    return RunDescription(
        name=f"{trainer.project_name}/{trainer.experiment_name}",
        system=f"{options.rollout_strategy}, {options.stop_rule}",
        started_s=started_s(),
        gpus=trainer.nnodes * trainer.n_gpus_per_node,
        settings={
            "model": config.actor_rollout_ref.model.path,
            "data.train_batch_size": options.target_valid_groups,
            "rollout.n": options.rollout_n,
            "data.max_response_length": options.max_response_length,
            "over_sampling_batch_size": str(options.over_sampling_batch_size),
            "rollout_pool_size": str(options.rollout_pool_size),
            "max_staleness": options.max_staleness,
            "engines": trainer.nnodes * trainer.n_gpus_per_node // gpus_per_engine(rollout),
            "max_num_seqs": rollout.max_num_seqs * rollout.data_parallel_size,
            "rollout.gpu_memory_utilization": rollout.gpu_memory_utilization,
            "actor.optim.lr": config.actor_rollout_ref.actor.optim.lr,
        },
    )


def gpus_per_engine(rollout: DictConfig) -> int:
    return rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
