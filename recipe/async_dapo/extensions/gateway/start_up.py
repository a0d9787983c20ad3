"""What can be known of an agent before a cluster starts: whether it can be started, read, and trained."""

from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.core_algos import AdvantageEstimator
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from ...config.extensions import not_in_copy, of_copy
from ...config.values import ConfigError
from ...startup.model import load_by_verl
from .conversation import conversation_class
from .options import FILE, AgentOptions
from .replies import reader_class
from .template import Template

_VERLS_ESTIMATORS = frozenset(one.value for one in AdvantageEstimator)
# The first takes the last row of each trajectory; the others have no group.
_RIGHT_ESTIMATORS = frozenset({"grpo", "gae", "reinforce_plus_plus"})


def check_agent(values: dict[str, Any], config: DictConfig) -> list[str]:
    """Check an agent's entry in the file of agent loops, and try the model's chat template.

    Returns:
        Warnings.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    options = AgentOptions.of(values)
    warnings: list[str] = program_of(options).check()
    warnings += server_of(options).check(options, config)
    reader_class().check(options.parser)
    check_trainable(config)
    model = load_by_verl(config)
    model_type = getattr(model.hf_config, "model_type", None)
    builder = create_continuous_token_builder(
        model.tokenizer,
        hf_model_type=model_type,
        chat_template_kwargs=config.data.apply_chat_template_kwargs,
        mm_processor_kwargs=config.data.mm_processor_kwargs,
        processor=model.processor,
    )
    warnings += conversation_class().warnings(builder, model.tokenizer)
    if refuses := Template.of(builder).refuses:
        warnings.append(f"the model's chat template renders no calls of tools, which agents are then told: {refuses}")
    if (estimator := config.algorithm.adv_estimator) not in _VERLS_ESTIMATORS:
        warnings.append(
            f"algorithm.adv_estimator={estimator} is given a row for each chain of an agent, all with its score; it "
            "has to count a trajectory once"
        )
    default = config.actor_rollout_ref.rollout.multi_turn.format
    return warnings + reader_class().warnings(options.parser, model_type, default)


def program_of(options: AgentOptions) -> Any:
    """The agent's program, as this copy starts it.

    Raises:
        ConfigError: if it starts none.
    """
    make = _of_copy("agent_program", "agent_programs", options)
    return make(FILE, agent=options.agent, command=options.command, environment=options.environment)


def server_of(options: AgentOptions) -> Any:
    """The class of the server that the agent asks, as this copy has it.

    Raises:
        ConfigError: if it has none.
    """
    return _of_copy("agent_server", "http", options)


def _of_copy(place: str, folder: str, options: AgentOptions) -> Any:
    found = of_copy(place)
    if found is None:
        raise options.cannot(not_in_copy(folder, "write the agent as a loop"))
    return found


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
