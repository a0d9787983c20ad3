"""An agent's entry, and the model's chat template, before a cluster starts."""

import asyncio
from copy import deepcopy
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.extensions.gateway import start_up, template
from recipe.async_dapo.extensions.gateway.black_box import BlackBoxAgent
from recipe.async_dapo.extensions.gateway.options import AgentOptions
from recipe.async_dapo.extensions.gateway.start_up import program_of
from recipe.async_dapo.extensions.gateway.template import TemplateFinding, tried

from ..support.world import TEMPLATE, TOKENIZER

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "neither": ({}, "agent=None: name either agent, a function, or command"),
    "both": ({"agent": "a:b", "command": ["c"]}, "name either"),
    "no function": ({"agent": "module.function"}, "must be module:function"),
    "no list": ({"command": "bash solve.sh"}, "must be a list of words"),
    "unknown": ({"agent": "a:b", "timeout": 3}, "timeout=3: unknown option; known: agent"),
    "choice": ({"agent": "a:b", "on_failure": "zero"}, "on_failure=zero: must be one of drop_group, score_zero"),
    "limit": ({"agent": "a:b", "silence_s": 0}, "silence_s=0: must be a positive number"),
    "an address of none": ({"agent": "a:b", "host": "0.0.0.0"}, "host=0.0.0.0: agents are told this address: name"),
    "patterns that are no list": ({"agent": "a:b", "ignored": "time"}, "must be a list of regular expressions"),
    "a variable that is no text": ({"command": ["c"], "environment": {"THREADS": 4}}, "environment=THREADS: names and"),
    "no variables": ({"command": ["c"], "environment": ["A=b"]}, "environment=list: must have"),
    "a function's variables": ({"agent": "a:b", "environment": {"A": "secret"}}, "environment=A: only a command has"),
    "pattern": ({"agent": "a:b", "ignored": ["("]}, "must be a regular expression"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_given_an_entry_that_cannot_work_then_it_is_refused_by_key_value_and_remedy(what: str) -> None:
    values, text = REFUSED[what]
    with pytest.raises(ConfigError) as refused:
        AgentOptions.of(values)
    assert text in str(refused.value)


@pytest.mark.parametrize("entry", [{"agent": "a:b"}, {"command": ["bash", "solve.sh"]}])
def test_given_a_copy_that_starts_no_programs_then_an_entry_of_one_is_refused_by_name(entry, monkeypatch) -> None:
    monkeypatch.setattr(start_up, "of_copy", lambda place: None)
    [(key, value)] = entry.items()
    with pytest.raises(ConfigError) as refused:
        program_of(AgentOptions.of(entry))
    assert f"path, {key}={value}: extensions/agent_programs is not in this copy; copy that" in str(refused.value)


ROUTES = "actor_rollout_ref.rollout.enable_rollout_routing_replay"


@pytest.mark.parametrize(
    ("key", "right", "wrong", "said"),
    [
        (ROUTES, False, True, "was never tried with agent programs"),
        ("algorithm.adv_estimator", "grpo", "rloo", "counts each row of a trajectory in its group"),
    ],
)
def test_given_what_agents_cannot_be_trained_with_then_a_worker_refuses_it_too(key, right, wrong, said) -> None:
    """A copy may lack the checks that ask at start-up."""
    rollout = {"response_length": 8, "prompt_length": 8, "multi_turn": {"format": "hermes"}}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    wraps = {"trainer_config": DictConfigWrap(config), "data_config": DictConfigWrap(config.data)}
    others = {"server_manager": None, "processor": None, "dataset_cls": None, "hf_model_type": "qwen3"}

    async def make() -> None:
        BlackBoxAgent(tokenizer=TOKENIZER, agent="a:b", **wraps, **others)

    OmegaConf.update(config, key, right)
    asyncio.run(make())
    OmegaConf.update(config, key, wrong)
    with pytest.raises(ConfigError, match=f"^{key}={wrong}: {said}"):
        asyncio.run(make())


def finding(chat_template: str, model_type: str = "qwen3") -> TemplateFinding:
    tokenizer = deepcopy(TOKENIZER)
    tokenizer.chat_template = chat_template
    builder = create_continuous_token_builder(
        tokenizer, hf_model_type=model_type, chat_template_kwargs={}, mm_processor_kwargs={}, processor=None
    )
    return tried(builder, tokenizer)


def test_given_a_template_and_builder_that_agree_then_nothing_differs() -> None:
    assert finding(TEMPLATE) == TemplateFinding(has_text_arguments=False, refuses="", differences={})


def test_given_a_template_whose_end_of_a_turn_is_not_found_then_cut_answers_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(template, "_closing_ids", lambda builder: ())
    assert finding(TEMPLATE).differences.keys() == {"an answer that was cut"}


def test_given_an_agent_whose_score_is_the_functions_then_its_rows_need_what_that_is_given() -> None:
    assert BlackBoxAgent.scores_itself({"agent": "a:b"})
    assert not BlackBoxAgent.scores_itself({"agent": "a:b", "reward": "function"})


def test_given_a_family_without_a_builder_of_its_own_then_the_lost_newline_is_named() -> None:
    found = finding(TEMPLATE, "unheard_of")
    assert found.differences.keys() == {"a tool's result", "a user's message"}
    assert all("\\n" in difference for difference in found.differences.values())


def test_given_a_template_that_wants_arguments_as_text_or_has_no_calls_then_that_is_found() -> None:
    as_text = TEMPLATE.replace("c.function.arguments | tojson", "'' + c.function.arguments")
    assert finding(as_text).has_text_arguments and not finding(as_text).refuses
    without = "{% if m.tool_calls %}{{ raise_exception('no tools') }}{% endif %}"
    refusing = TEMPLATE.replace("{{ m['content'] }}", without + "{{ m['content'] }}")
    assert "no tools" in finding(refusing).refuses and not finding(refusing).differences


def test_given_a_template_that_rewrites_earlier_turns_then_it_is_named() -> None:
    trimmed = TEMPLATE.replace("{{ m['content'] }}", "{{ m['content'] if loop.last else m['content'] | upper }}")
    assert "a chain has" in str(finding(trimmed).differences) or "cannot be appended" in str(
        finding(trimmed).differences
    )
