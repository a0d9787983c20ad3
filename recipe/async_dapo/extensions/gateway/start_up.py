"""What can be known of an agent before a cluster starts: whether it can be started, read, and continued."""

import math
import os
import resource
import shutil
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.core_algos import AdvantageEstimator
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from ...config.values import ConfigError, check_choice
from ...runtime.containment import first_line
from ...startup.model import load_by_verl
from .agent_program import function_of
from .options import FILE, AgentOptions
from .reading import known_parsers, parser_of
from .template import tried

_VERLS_ESTIMATORS = frozenset(one.value for one in AdvantageEstimator)
# The first takes the last row of each trajectory; the others have no group.
_RIGHT_ESTIMATORS = frozenset({"grpo", "gae", "reinforce_plus_plus"})
FILES_A_SESSION = 4  # its connections in the worker; in the process of agents these, or a command's pipes
FILES_BESIDE = 1024  # of a worker, or of a process of agents


def check_agent(values: dict[str, Any], config: DictConfig) -> list[str]:
    """Check an agent's entry in the file of agent loops, and try the model's chat template.

    Returns:
        Warnings.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    options = AgentOptions.of(values)
    if options.agent is not None:
        _check_function(options.agent)
    if options.command is not None:
        _check_command(options.command[0])
    if options.parser is not None:
        check_choice(f"{FILE}, parser", options.parser, known_parsers())
    check_trainable(config)
    _check_open_files(config)
    model = load_by_verl(config)
    model_type = getattr(model.hf_config, "model_type", None)
    builder = create_continuous_token_builder(
        model.tokenizer,
        hf_model_type=model_type,
        chat_template_kwargs=config.data.apply_chat_template_kwargs,
        mm_processor_kwargs=config.data.mm_processor_kwargs,
        processor=model.processor,
    )
    found = tried(builder, model.tokenizer)
    warnings = [
        f"behind {what} the tokens of a chain differ from those of a full rendering: {difference}"
        for what, difference in found.differences.items()
    ]
    if found.refuses:
        warnings.append(
            f"the model's chat template renders no calls of tools, which agents are then told: {found.refuses}"
        )
    if (estimator := config.algorithm.adv_estimator) not in _VERLS_ESTIMATORS:
        warnings.append(
            f"algorithm.adv_estimator={estimator} is given a row for each chain of an agent, all with its score; it "
            "has to count a trajectory once"
        )
    parser = options.parser or parser_of(model_type)
    if parser is None:
        format_ = config.actor_rollout_ref.rollout.multi_turn.format
        check_choice("actor_rollout_ref.rollout.multi_turn.format", format_, known_parsers())
        warnings.append(f"calls of tools are read by the parser {format_}: which one {model_type} needs is not known")
    return warnings


def check_trainable(config: DictConfig) -> None:
    """Routes of several chains, each with its own beginning, were never trained on, and a trajectory whose agent has
    several chains must not count several times in its group's mean.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    key = "actor_rollout_ref.rollout.enable_rollout_routing_replay"
    if OmegaConf.select(config, key):
        remedy = "was never tried with agent programs; set it to False, or write the agent as a loop"
        raise ConfigError(key, True, remedy)
    estimator = OmegaConf.select(config, "algorithm.adv_estimator")
    if estimator in _VERLS_ESTIMATORS - _RIGHT_ESTIMATORS:
        what = "counts each row of a trajectory in its group, and each of an agent's chains is one"
        remedy = "set grpo, which counts a trajectory once"
        if "rloo" in str(estimator):
            remedy += "; with algorithm.norm_adv_by_std_in_grpo=False its advantages are rloo's times (n - 1) / n"
        raise ConfigError("algorithm.adv_estimator", estimator, f"{what}; {remedy}")


def _check_open_files(config: DictConfig) -> None:
    """Of one batch's sessions; workers raise their limit themselves, up to the hard one."""
    rollout = config.actor_rollout_ref.rollout
    sessions = math.ceil(config.data.train_batch_size * rollout.n / rollout.agent.num_workers)
    needed, (_, hard) = FILES_BESIDE + FILES_A_SESSION * sessions, resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        what = f"{sessions} sessions that a worker may have open at once take {needed} open files"
        remedy = (
            f"raise the hard limit (ulimit -Hn {needed}; in docker --ulimit nofile={needed}) on every node, or set "
        )
        raise ConfigError("ulimit -Hn", hard, f"{what}; {remedy}more actor_rollout_ref.rollout.agent.num_workers")


def _check_function(name: str) -> None:
    try:
        function = function_of(name)
    except BaseException as error:  # the user's module may raise anything, SystemExit included
        if isinstance(error, KeyboardInterrupt):
            raise
        remedy = "correct the name, or install its module on every node"
        raise ConfigError(f"{FILE}, agent", name, f"cannot be loaded: {first_line(error)}; {remedy}") from error
    if not callable(function):
        raise ConfigError(f"{FILE}, agent", name, "is no function; name one of base URL, key and sample")


def _check_command(program: str) -> None:
    if shutil.which(program) is None:
        remedy = "is not found, or is no program; give its whole path, since it runs in a fresh folder, on every node"
        raise ConfigError(f"{FILE}, command", program, remedy)
    if os.path.dirname(program) and not os.path.isabs(program):
        raise ConfigError(f"{FILE}, command", program, "runs in a fresh folder: give its whole path")
