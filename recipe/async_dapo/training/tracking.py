"""What a run tells while it goes on: a line a step in place of verl's dictionary, and the record for its report."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from verl.utils.tracking import Tracking

from ..config import AsyncDAPOConfig
from ..logs import log_phase, started_s
from ..report import keys
from ..report.health import Hints
from ..report.layout import custom_scalars
from ..report.record import RunDescription, RunRecorder, RunSource
from ..report.step_line import step_line

logger = logging.getLogger(__name__)

CONSOLE, TENSORBOARD, RECORD = "console", "tensorboard", "async_dapo"  # backends: verl's, and this recipe's


class StepLines:
    """In the place of verl's console logger, which writes all metrics of a step into one line."""

    def __init__(self) -> None:
        self._hints = Hints()

    def log(self, data: Mapping[str, Any], step: int) -> None:
        logger.info(step_line(step, data))
        if keys.STEP_S in data and (hint := self._hints.of_step(data)) is not None:
            logger.info("step %d: hint: %s", step, hint)


def extend(tracking: Tracking, config: DictConfig, options: AsyncDAPOConfig, source: RunSource) -> None:
    """Give verl's loggers this recipe's line and record, in place."""
    if CONSOLE in tracking.logger:
        tracking.logger[CONSOLE] = StepLines()
    if TENSORBOARD in tracking.logger:
        tracking.logger[TENSORBOARD].writer.add_custom_scalars(custom_scalars())
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
            "actor.optim.lr": config.actor_rollout_ref.actor.optim.lr,
        },
    )


def gpus_per_engine(rollout: DictConfig) -> int:
    return rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
