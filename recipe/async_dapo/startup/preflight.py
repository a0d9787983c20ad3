"""Start-up checks: everything that can be known to be wrong before a cluster starts ends in a clear error."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ..config import AsyncDAPOConfig, ConfigError
from ..options.values import ConfigErrors, check_each
from ..verl_version import check_versions

logger = logging.getLogger(__name__)

WARNING = "warning: "  # a note that begins so is logged at every start


@dataclass(slots=True, kw_only=True)
class Run:
    """What is checked, and what checks have found that others need."""

    config: DictConfig
    options: AsyncDAPOConfig
    rows: list[dict[str, Any]] = field(default_factory=list)  # one of each data source, to try the reward function on


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How a check ended: with a note, or with an error."""

    name: str
    note: str = ""
    error: ConfigError | None = None


def check_all(config: DictConfig) -> AsyncDAPOConfig:
    """Check options, folders, checkpoint, code, data and reward function; nothing that starts Ray.

    Raises:
        ConfigError: the first that is found, naming key, value and remedy.
    """
    for finding in findings(config):
        if finding.error is not None:
            raise finding.error
        if finding.note.startswith(WARNING):
            logger.warning("%s: %s", finding.name, finding.note.removeprefix(WARNING))
    return AsyncDAPOConfig.from_hydra(config)


def findings(config: DictConfig) -> Iterator[Finding]:
    """Run every check, cheap ones first, each whatever became of those before; without options no other can run."""
    yield from _run("versions", check_versions)
    parsed: list[AsyncDAPOConfig] = []

    def parse() -> str:
        parsed.append(AsyncDAPOConfig.from_hydra(config))
        return f"{parsed[0].rollout_strategy}, {parsed[0].stop_rule}"

    yield from _run("async_dapo options", parse)
    for options in parsed:
        run = Run(config=config, options=options)
        for name, check in CHECKS.items():
            yield from _run(name, partial(check, run))


def _run(name: str, check: Callable[[], str | None]) -> Iterator[Finding]:
    """One finding if all is well, else one for each mistake."""
    try:
        yield Finding(name=name, note=check() or "")
    except ConfigErrors as found:
        yield from (Finding(name=name, error=error) for error in found.errors)
    except ConfigError as error:
        yield Finding(name=name, error=error)
    except OmegaConfBaseException as error:
        what = str(error).split("\n")[0]
        problem = ConfigError(error.full_key or "config", "<unreadable>", f"{what}; correct the override")
        yield Finding(name=name, error=problem)


def _verl_options(run: Run) -> None:
    from .option_names import check_option_names
    from .verl_options import check_verl_options

    check_each([partial(check_verl_options, run.config), partial(check_option_names, run.config)])
    from verl.utils.device import auto_set_device

    auto_set_device(run.config)


def _algorithm(run: Run) -> str:
    from .algorithm_check import check_algorithm
    from .value_choices import check_choices

    check_each([partial(check_choices, run.config), partial(check_algorithm, run.config, run.options)])
    return f"{run.config.algorithm.adv_estimator}, importance sampling {run.options.importance_sampling}"


def _reward_options(run: Run) -> None:
    from .reward_options import check_reward_options

    check_reward_options(run.config)


def _engines(run: Run) -> None:
    from .engine_check import check_engines
    from .engine_kwargs import check_engine_kwargs

    check_each([partial(check_engine_kwargs, run.config), partial(check_engines, run.config, run.options)])


def _trainer(run: Run) -> None:
    from .batch_sizes import check_batch_sizes
    from .trainer_check import check_trainer

    both = (check_batch_sizes, check_trainer)
    check_each([partial(check, run.config, run.options) for check in both])


def _verl(run: Run) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    config = run.config
    try:
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
        )
    except (ValueError, AssertionError, HydraException) as error:
        raise ConfigError("verl", "validate_config", f"verl refuses these options: {error}") from error


def _output(run: Run) -> str:
    from .output_check import check_output_folders

    return check_output_folders(run.config)


def _checkpoint(run: Run) -> str:
    from .resume_check import check_resume

    check_resume(run.config)
    folder = run.config.trainer.resume_from_path
    return f"resumes from {folder}" if folder else ""


def _agent_loop(run: Run) -> str:
    from .agent_loop_check import check_agent_loop

    return check_agent_loop(run.config)


def _data(run: Run) -> str:
    from .data_check import check_data

    run.rows = check_data(run.config, run.options)
    return f"sources {', '.join(sorted(row['data_source'] for row in run.rows))}" if run.rows else ""


def _history(run: Run) -> str | None:
    from .history_check import check_history

    return check_history(run.config, run.options)


def _model(run: Run) -> None:
    from .model_check import check_context

    check_context(run.config)


def _memory(run: Run) -> str:
    from .memory_check import check_memory

    warning = check_memory(run.config)
    return WARNING + warning if warning else ""


def _reward(run: Run) -> str:
    from .reward_check import check_reward

    if not run.options.reward.check_at_start:
        return "not tried: async_dapo.reward.check_at_start=False"
    check_reward(run.config, run.options, run.rows)
    return run.options.reward_function


CHECKS: dict[str, Callable[[Run], str | None]] = {
    "verl's options": _verl_options,
    "algorithm": _algorithm,
    "reward options": _reward_options,
    "engines": _engines,
    "trainer": _trainer,
    "verl's own checks": _verl,
    "output folders": _output,
    "checkpoint": _checkpoint,
    "agent loop and tools": _agent_loop,
    "data": _data,
    "history of prompts": _history,
    "model": _model,
    "memory": _memory,
    "reward function": _reward,
}
