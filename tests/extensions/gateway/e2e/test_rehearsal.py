"""A rehearsal of a run with an agent program: its turns and its time of its own, on emulated engines."""

import json

import pytest

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo_lab.rehearsal.options import AGENTS_NEED

from ....support.harness import ledger_closes
from ....support.rehearsed import rehearse

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not {*AGENTS_NEED} <= declared().keys(), reason="this copy starts no scripted agents"),
]

AGENT = "actor_rollout_ref.rollout.agent"
PROGRAM = """
- name: program
  _target_: recipe.async_dapo.extensions.gateway.black_box.BlackBoxAgent
  agent: json:loads
"""


def test_given_an_agent_program_when_rehearsed_then_a_scripted_one_has_its_turns_in_its_place(tmp_path) -> None:
    (tmp_path / "agents.yaml").write_text(PROGRAM)
    folder = rehearse(
        tmp_path / "run",
        f"{AGENT}.default_agent_loop=program",
        f"{AGENT}.agent_loop_config_path={tmp_path}/agents.yaml",
        "rehearsal.agent_turns=3",
        "rehearsal.agent_own_s=5",
        "rehearsal.speedup=5",
        "async_dapo.max_tokens_per_round=null",
        "async_dapo.importance_sampling=decoupled",
        "trainer.save_freq=-1",
    )
    lines = [json.loads(line)["data"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    for step in lines:
        assert ledger_closes(step) and step["async_dapo/ledger/failed"] == 0
        sessions, rows, requests = (step[f"async_dapo/gateway/{name}"] for name in ("sessions", "rows", "requests"))
        assert sessions == rows > 0, "all turns are one chain"
        assert 2 * sessions < requests <= 3 * sessions, "a few have a context that is full sooner"
        ways = ("trained", "context_only", "rolled_back", "unanswered")
        tokens = [step[f"async_dapo/gateway/{name}_tokens"] for name in ways]
        assert step["async_dapo/gateway/sampled_tokens"] == sum(tokens)
    document = json.loads((folder / "rehearsal.json").read_text())
    assert all(0 < step["bound_share"] <= 1.2 for step in document["steps"])
