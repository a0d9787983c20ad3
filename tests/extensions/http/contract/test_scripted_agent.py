"""The scripted agent of rehearsals, and how it takes the place of a run's programs."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo_lab.rehearsal import agents, scripted_agent

from ...gateway.support.played import play
from ...gateway.support.world import QUESTION, shown, texts

by_chats = pytest.mark.skipif("chat_completions" not in declared(), reason="this copy serves no chat completions")
ENTRIES = """
- {name: one, _target_: recipe.async_dapo.extensions.gateway.black_box.BlackBoxAgent, agent: "a:b", time_limit_s: 3}
- {name: loop, _target_: examples.agent_loop.guessing.Guessing}
"""


@by_chats
@pytest.mark.parametrize(("first", "score"), [("0001", 1.0), ("0010", 0.0)])
def test_given_a_script_then_an_agent_has_its_turns_and_its_first_answer_is_its_score(first: str, score: float) -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> Any:
        script = {"turns": 3, "own_s": 0.01, "metric": "right"}
        return await scripted_agent.run(address, key, {"raw_prompt": QUESTION, scripted_agent.SCRIPT: script})

    outcome, group, life = play(agent, says=texts(first, "0", "1"), filtered_by="right")
    assert not outcome.reason, outcome.cause
    rows = shown(group)
    assert [row.count("Go on.") for row in rows] == ([2] if "chains" in declared() else [0, 0, 0]), "else in prompts"
    assert "".join(rows).count("[") == life.server.requests == 3
    assert group.trajectories[0].outputs[-1].rest.reward_score == score


@pytest.mark.slow
@by_chats
def test_given_a_context_that_is_full_then_the_agent_ends_with_what_it_has() -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> Any:
        script = {"turns": 9, "own_s": 0.0, "metric": "acc"}
        return await scripted_agent.run(address, key, {"raw_prompt": QUESTION, scripted_agent.SCRIPT: script})

    outcome, _, life = play(agent, says=texts("0" * 1500), token_s=0.00001)
    assert not outcome.reason, outcome.cause
    assert 2 <= life.server.requests < 9


@by_chats
@pytest.mark.parametrize("why", ["no session has this key", "beyond the model's maximum context length"])
def test_given_a_request_that_is_refused_then_the_agent_says_why(why: str) -> None:
    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        script = {"turns": 1, "own_s": 0.0, "metric": "acc"}
        messages = [{"role": "user", "content": "y" * 6000}]
        used = "another" if "key" in why else key
        with pytest.raises(RuntimeError, match=f"the gateway has refused a request: .*{why}"):
            await scripted_agent.run(address, used, {"raw_prompt": messages, scripted_agent.SCRIPT: script})
        return 1.0

    outcome, _, life = play(agent)
    assert outcome.reason == "agent_without_turn" and life.server.requests == 0


def options(folder: Path, **given: Any) -> Any:
    return OmegaConf.create({"folder": str(folder), "agent_turns": 3, "agent_own_s": 20.0, "speedup": 10.0} | given)


def test_given_a_run_with_programs_then_each_has_a_script_and_loops_stay(tmp_path: Path) -> None:
    (tmp_path / "loops.yaml").write_text(ENTRIES)
    agent = {"agent_loop_config_path": str(tmp_path / "loops.yaml")}
    groups = {"enable": True, "metric": "right"}
    config = OmegaConf.create(
        {"actor_rollout_ref": {"rollout": {"agent": agent}}, "algorithm": {"filter_groups": groups}}
    )
    agents.script_agents(config, options(tmp_path))
    one, loop = OmegaConf.load(config.actor_rollout_ref.rollout.agent.agent_loop_config_path)
    assert one == {
        "name": "one",
        "_target_": "recipe.async_dapo_lab.rehearsal.agents.ScriptedAgent",
        "turns": 3,
        "own_s": 2.0,
        "metric": "right",
    }
    assert loop["_target_"].endswith("Guessing")


def test_given_a_run_without_a_program_then_it_is_told(tmp_path: Path) -> None:
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"agent": {"agent_loop_config_path": None}}}})
    with pytest.raises(ConfigError, match="agent_turns=3: the run has no agent program; leave it null"):
        agents.script_agents(config, options(tmp_path))
