"""The examples train on the real stack, with the options of their own commands: two trainings for five of them."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from recipe.async_dapo.cpu.model_and_data import Assets

from ..support.harness import ROOT, Run, ledger_closes, train, train_at_once

STEPS = 2
TRAINED = {"own_data_in_two_turns": ("data_set", "reward", "agent_loop"), "judge_and_tools": ("judged_reward", "tools")}


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
def runs(assets: Assets, judge: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    data = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, str(ROOT / "examples" / "data_set" / "make_data.py"), str(data)], check=True)
    starts = [
        partial(
            train,
            assets,
            tmp_path_factory.mktemp(name),
            steps=STEPS,
            strategy="partial",
            overrides=[word for example in examples for word in overrides_of(example, data)],
        )
        for name, examples in TRAINED.items()
    ]
    return dict(zip(TRAINED, train_at_once(*starts), strict=True))


@pytest.mark.parametrize("name", TRAINED)
def test_given_the_options_of_an_examples_command_when_trained_then_no_group_fails(
    runs: dict[str, Run], name: str
) -> None:
    run = runs[name]
    assert len(run.steps) == STEPS and all(map(ledger_closes, run.steps))
    assert sum(run.metric("async_dapo/failure/groups")) == 0


def test_given_two_turns_when_trained_then_our_question_is_not_trained_on(runs: dict[str, Run]) -> None:
    [first, *_] = runs["own_data_in_two_turns"].inspections
    assert first["unsampled_tok"] > 0
    assert runs["judge_and_tools"].inspections[0]["unsampled_tok"] == 0


def test_given_a_judge_when_trained_then_its_verdicts_are_the_rewards(runs: dict[str, Run]) -> None:
    assert all(0 < reward < 1 for reward in runs["judge_and_tools"].metric("critic/score/mean"))


def test_every_example_is_trained_on() -> None:
    folders = {path.name for path in Path(ROOT, "examples").iterdir() if (path / "train.sh").exists()}
    assert folders == {example for examples in TRAINED.values() for example in examples}
