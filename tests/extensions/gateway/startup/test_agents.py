"""An agent's entry, and what this copy lacks for it, before a cluster starts."""

import asyncio
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.extensions.gateway import replies, start_up
from recipe.async_dapo.extensions.gateway.black_box import BlackBoxAgent
from recipe.async_dapo.extensions.gateway.conversation import Conversation
from recipe.async_dapo.extensions.gateway.messages import Refused
from recipe.async_dapo.extensions.gateway.options import AgentOptions
from recipe.async_dapo.extensions.gateway.start_up import program_of, server_of
from recipe.async_dapo.extensions.gateway.template import Template

from ..support.world import ADD, TEMPLATE, TOKENIZER, builder_of

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "neither": ({}, "agent=None: name either agent, a function, or command"),
    "both": ({"agent": "a:b", "command": ["c"]}, "name either"),
    "no function": ({"agent": "module.function"}, "must be module:function"),
    "no text": ({"agent": 5}, "agent=5: must be module:function"),
    "no count": ({"agent": "a:b", "max_turns": 1.5}, "max_turns=1.5: must be a whole number >= 1"),
    "no list": ({"command": "bash solve.sh"}, "must be a list of words"),
    "unknown": ({"agent": "a:b", "timeout": 3}, "timeout=3: unknown option; known: agent"),
    "choice": ({"agent": "a:b", "on_failure": "zero"}, "on_failure=zero: must be one of drop_group, score_zero"),
    "limit": ({"agent": "a:b", "silence_s": 0}, "silence_s=0: must be a number > 0"),
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
@pytest.mark.parametrize(("needs", "name"), [(program_of, "agent_programs"), (server_of, "http")])
def test_given_a_copy_that_starts_no_programs_or_has_no_server_then_an_entry_of_one_is_refused_by_name(
    needs, name, entry, monkeypatch
) -> None:
    monkeypatch.setattr(start_up, "of_copy", lambda place: None)
    [(key, value)] = entry.items()
    with pytest.raises(ConfigError) as refused:
        needs(AgentOptions.of(entry))
    assert f"path, {key}={value}: extensions/{name} is not in this copy; copy that" in str(refused.value)


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


def test_given_a_copy_that_knows_no_formats_then_a_parser_and_tools_are_refused_by_its_name(monkeypatch) -> None:
    monkeypatch.setattr(replies, "of_copy", lambda place: None)
    reader = replies.reader_class()
    lacking = "extensions/reply_formats is not in this copy"
    with pytest.raises(ConfigError, match=f"path, parser=hermes: {lacking}; copy that folder too, or leave it out"):
        reader.check("hermes")
    with pytest.raises(Refused, match=f"tools are not served: {lacking}"):
        reader(TOKENIZER, parser=None, model_type="qwen3", default="hermes").check_tools([ADD])
    assert reader.warnings(None, "qwen3", "hermes") == [
        f"requests with tools are refused, and reasoning is text: {lacking}"
    ]


def test_given_a_copy_without_chains_then_a_warning_says_what_becomes_of_turns() -> None:
    [told] = Conversation.warnings(builder_of(TEMPLATE)[0], TOKENIZER)
    assert told == "each turn is trained as a row of its own: extensions/chains is not in this copy"


def test_given_an_agent_whose_score_is_the_functions_then_its_rows_need_what_that_is_given() -> None:
    assert BlackBoxAgent.scores_itself({"agent": "a:b"})
    assert not BlackBoxAgent.scores_itself({"agent": "a:b", "reward": "function"})


def test_given_a_template_that_wants_arguments_as_text_or_has_no_calls_then_that_is_found() -> None:
    as_text = TEMPLATE.replace("c.function.arguments | tojson", "'' + c.function.arguments")
    assert Template.of(builder_of(as_text)[0]) == Template(has_text_arguments=True, refuses="")
    assert Template.of(builder_of(TEMPLATE)[0]) == Template(has_text_arguments=False, refuses="")
    without = "{% if m.tool_calls %}{{ raise_exception('no tools') }}{% endif %}"
    refusing = TEMPLATE.replace("{{ m['content'] }}", without + "{{ m['content'] }}")
    assert "no tools" in Template.of(builder_of(refusing)[0]).refuses
