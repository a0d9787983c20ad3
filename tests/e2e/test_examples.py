"""The example with a judge trains on the real stack; those of data, reward, agent loop and tool train on two nodes, in
`test_two_nodes.py`.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recipe.async_dapo_lab.report.calls import read_calls
from recipe.async_dapo_lab.report.write import write_report
from recipe.async_dapo_lab.run_files import CALLS_FILE
from recipe.async_dapo_lab.train import RECORDER

from ..support.harness import ROOT, ledger_closes, overrides_of, train
from .test_two_nodes import EXAMPLES

STEPS = 2


@pytest.fixture
def judge() -> Iterator[str]:
    """Where it is."""
    command = [sys.executable, str(ROOT / "examples" / "judged_reward" / "judge.py"), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1]
        process.terminate()


@pytest.mark.nightly
def test_given_a_judge_when_trained_then_its_verdicts_are_the_rewards(assets, judge, tmp_path, monkeypatch):
    """Beside the example of tools it would find hardly an answer right: there another turn follows the answer."""
    monkeypatch.setenv("JUDGE_URL", judge)
    overrides = overrides_of("judged_reward")
    run = train(assets, tmp_path / "run", steps=STEPS, strategy="partial", overrides=overrides)
    assert len(run.steps) == STEPS and all(map(ledger_closes, run.steps))
    assert sum(run.metric("async_dapo/failure/groups")) == 0
    assert all(0 < reward < 1 for reward in run.metric("critic/score/mean"))


@pytest.mark.nightly
def test_given_two_tools_over_http_of_which_one_is_broken_then_each_step_and_the_report_name_it(
    assets, tmp_path, monkeypatch
):
    command = [sys.executable, str(ROOT / "examples" / "http_tools" / "service.py"), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        monkeypatch.setenv("TOOLS_SERVICE", service.stdout.readline().split()[1])
        overrides = overrides_of("http_tools")
        overrides += [f"async_dapo.report_dir={tmp_path}/record", f"async_dapo.recorder={RECORDER}"]
        try:
            run = train(assets, tmp_path / "run", steps=STEPS, strategy="partial", overrides=overrides)
        finally:
            service.terminate()
    assert len(run.steps) == STEPS and sum(run.metric("async_dapo/failure/groups")) == 0
    calls = read_calls(tmp_path / "record" / CALLS_FILE)
    assert set(calls) == {"add", "look_up"}
    assert calls["add"].failed == 0 < calls["add"].median_s <= calls["add"].longest_s
    assert calls["look_up"].failed == calls["look_up"].calls > 0
    log = (run.folder / "train.log").read_text()
    assert "a call of look_up failed, and its agent loop is told so: ClientResponseError: 503," in log
    lines = re.findall(r"step \d+.* \(rollout .*", log)
    assert len(lines) == STEPS and all("calls failed" in line for line in lines)
    assert "<tr><th>look_up</th>" in write_report([tmp_path / "record"]).read_text()


def test_every_example_is_trained_on() -> None:
    folders = {path.name for path in Path(ROOT, "examples").iterdir() if (path / "train.sh").exists()}
    assert folders == {*EXAMPLES, "judged_reward", "http_tools", "agent_program"}, "the last with its extension's tests"
