"""Agents through the gateway on the real stack, beside loops written inside, killed once and resumed: the same rows."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.record.keys import FRESH_K3_KL

from ....support import till
from ....support.harness import Run, ledger_closes, overrides_of, temporary_folder_of, train
from ..support.half_and_half import DIARY, FOLDER_OF_A_LIFE

NEEDED = {"agent_programs", "chains", "chat_completions", "anthropic_messages"}  # one of eight agents asks by the last
pytestmark = pytest.mark.skipif(not declared().keys() >= NEEDED, reason="an extension is missing")

STEPS, KILLED_STEP = 3, 2
PROMPTS_PER_STEP = 4
ROUND_LIMIT_TOK = 200  # of three turns, which have 85 to 320: enough groups end within it, and others are cut in a turn
K3_NATS = 1e-6
TOLERANCE = 1e-4  # nats, float32: on some processors a sum's order depends on how many sequences are in a batch
END_S = 60.0
LOOPS = """
- name: half_and_half
  _target_: tests.extensions.gateway.support.half_and_half.HalfAndHalf
  agent: tests.extensions.gateway.support.agents:three_turns
"""
OVERRIDES = (
    "trainer.save_freq=1",
    "trainer.resume_mode=auto",
    f"data.train_batch_size={PROMPTS_PER_STEP}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS_PER_STEP}",
    "actor_rollout_ref.actor.optim.lr=0",  # what is greedy comes out alike under every version
    "async_dapo.importance_sampling=decoupled",
    "async_dapo.over_sampling_batch_size=16",
    "async_dapo.rollout_pool_size=128",
    f"async_dapo.max_tokens_per_round={ROUND_LIMIT_TOK}",  # so that turns are interrupted, whoever is faster
    "actor_rollout_ref.rollout.agent.default_agent_loop=half_and_half",
)


@pytest.fixture(scope="module")
def lives() -> Iterator[tuple[str, str]]:
    """A folder for the temporary files of the run that is killed, and one for that which goes on from it."""
    with TemporaryDirectory(prefix="g") as killed, TemporaryDirectory(prefix="g") as resumed:  # short: sockets
        yield killed, resumed


@pytest.fixture(scope="module")
def run(assets, tmp_path_factory, lives) -> Run:
    folder = tmp_path_factory.mktemp("gateway")
    (folder / "loops.yaml").write_text(LOOPS)
    overrides = (*OVERRIDES, f"actor_rollout_ref.rollout.agent.agent_loop_config_path={folder}/loops.yaml")
    diaries = {DIARY: str(folder / "diary.jsonl"), till.FOLDER: str(folder)}
    killed, resumed = ({"environment": diaries | {FOLDER_OF_A_LIFE: one}} for one in lives)
    train(assets, folder, steps=STEPS, strategy="partial", overrides=overrides, kill_at=KILLED_STEP, **killed)
    return train(assets, folder, steps=STEPS, strategy="partial", overrides=overrides, **resumed)


@pytest.fixture(scope="module")
def notes(run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(run.folder, "diary.jsonl").read_text().splitlines()]


def test_given_agents_through_the_gateway_then_steps_train_and_nothing_is_lost(run) -> None:
    assert len(run.steps) == STEPS and all(map(ledger_closes, run.steps))
    assert sum(run.metric("async_dapo/ledger/failed")) == 0
    assert sum(run.metric("async_dapo/partial/diverged_tokens")) == 0
    k3s = [step[FRESH_K3_KL] for step in run.steps if FRESH_K3_KL in step]
    assert k3s and max(map(abs, k3s)) < K3_NATS, k3s


def test_given_the_same_agent_inside_and_outside_then_ids_mask_and_log_probs_are_the_same(notes) -> None:
    inside = {tuple(note["rows"][0]["prompt"]): whole(note["rows"][0]) for note in notes if note["kind"] % 2 == 0}
    compared = dict.fromkeys((1, 3, 5, 7), 0)
    for note in notes:
        [row] = note["rows"]
        if note["kind"] in compared and tuple(row["prompt"]) in inside:
            (ids, mask, log_probs), (*expected, of_others) = whole(row), inside[tuple(row["prompt"])]
            assert [ids, mask] == expected, note["kind"]
            assert log_probs == pytest.approx(of_others, abs=TOLERANCE), note["kind"]
            compared[note["kind"]] += 1
    assert min(compared.values()) >= STEPS * PROMPTS_PER_STEP, "at least those of each group that was trained"


def whole(row: dict[str, Any]) -> tuple[list[int], list[int], list[float]]:
    """Without what an agent was told last and did not come to answer."""
    end = len(row["mask"]) - row["mask"][::-1].index(1)
    return row["response"][:end], row["mask"][:end], row["log_probs"][:end]


def test_given_rounds_that_stop_in_turns_and_a_kill_then_requests_go_on_under_other_weights(notes, lives) -> None:
    outside = [note for note in notes if note["kind"] % 2]
    assert any(len(versions) > 1 for note in outside for versions in note["spans"]), "no turn has two versions"
    second = [note for note in outside if note["life"] == lives[1]]
    assert any(min(versions) < KILLED_STEP - 1 for note in second for versions in note["spans"]), "all began after it"


def test_given_recorded_calls_when_rounds_stop_and_workers_are_killed_then_each_is_made_once(run) -> None:
    paid = Counter(charge["call"] for charge in till.lines(run.folder / till.LEDGER))
    assert len(paid) > STEPS * PROMPTS_PER_STEP and set(paid.values()) == {1}
    assert sum(run.metric("async_dapo/calls/carried")) > 0, "no call was under way at a stop"
    assert sum(run.metric("async_dapo/calls/replayed")) > 0, "none was answered from the record after the kill"
    assert max(run.metric("async_dapo/calls/kept_loops")) > 0 == sum(run.metric("async_dapo/calls/lost_loops"))


def test_given_workers_that_were_killed_then_no_process_of_an_agent_is_left(run, lives) -> None:
    left = [one for one in psutil.process_iter() if temporary_folder_of(one).startswith(lives)]
    _, alive = psutil.wait_procs(left, timeout=END_S)  # one ends as soon as it reads that its worker has
    assert not alive


@pytest.mark.nightly
def test_given_the_example_when_trained_then_every_step_has_rewards_of_its_agents(assets, tmp_path) -> None:
    words = overrides_of("agent_program")
    run = train(assets, tmp_path / "run", steps=2, strategy="partial", overrides=words)
    assert len(run.steps) == 2 and all(map(ledger_closes, run.steps))
    assert all(sessions > 0 for sessions in run.metric("async_dapo/gateway/sessions"))
    assert sum(run.metric("async_dapo/gateway/failed_sessions")) == 0
