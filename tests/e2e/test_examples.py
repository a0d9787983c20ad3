"""The examples train on the real stack, with the options of their own commands: two trainings for five of them, one of
which is for the night."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recipe.async_dapo_lab.quickstart.model_and_data import Assets

from ..support.harness import ROOT, Run, ledger_closes, train

STEPS = 2
TRAINED = {"own_data_in_two_turns": ("data_set", "reward", "agent_loop"), "judge_and_tools": ("tools", "judged_reward")}


def overrides_of(example: str, data: Path) -> list[str]:
    """Those that its `train.sh` gives to the quick start, from any folder."""
    script = (ROOT / "examples" / example / "train.sh").read_text()
    words = shlex.split(script.replace("\\\n", " "), comments=True)
    given = words[words.index("--") + 1 : words.index("$@")]
    return [word.replace("outputs/sums", str(data)).replace("=examples/", f"={ROOT}/examples/") for word in given]


@pytest.fixture(scope="module")
def judge() -> Iterator[None]:
    """On the port of the example's command."""
    command = [sys.executable, str(ROOT / "examples" / "judged_reward" / "judge.py"), "8765"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "judge: http://127.0.0.1:8765/judge\n"
        yield
        process.terminate()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, str(ROOT / "examples" / "data_set" / "make_data.py"), str(folder)], check=True)
    return folder


def trained(name: str, assets: Assets, data: Path, folder: Path) -> Run:
    overrides = [word for example in TRAINED[name] for word in overrides_of(example, data)]
    run = train(assets, folder, steps=STEPS, strategy="partial", overrides=overrides)
    assert len(run.steps) == STEPS and all(map(ledger_closes, run.steps))
    assert sum(run.metric("async_dapo/failure/groups")) == 0
    return run


def test_given_the_examples_of_data_reward_and_two_turns_when_trained_then_our_question_is_not_trained_on(
    assets, data, tmp_path
):
    run = trained("own_data_in_two_turns", assets, data, tmp_path / "run")
    assert run.inspections[0]["unsampled_tok"] > 0
    assert all(0 < reward < 1 for reward in run.metric("critic/score/mean"))
    assert all(turns > 2 for turns in run.metric("num_turns/mean")), "no tool was called"


@pytest.mark.nightly
def test_given_the_examples_of_a_judge_and_tools_when_trained_then_its_verdicts_are_the_rewards(
    assets, data, judge, tmp_path
):
    run = trained("judge_and_tools", assets, data, tmp_path / "run")
    assert run.inspections[0]["unsampled_tok"] > 0, "the tool's answers"
    assert all(0 < reward < 1 for reward in run.metric("critic/score/mean"))
    assert all(turns > 2 for turns in run.metric("num_turns/mean")), "no tool was called"


def test_every_example_is_trained_on() -> None:
    folders = {path.name for path in Path(ROOT, "examples").iterdir() if (path / "train.sh").exists()}
    assert folders == {example for examples in TRAINED.values() for example in examples}
