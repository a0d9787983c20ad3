"""The command on a machine that it cannot use, and its order and wiring on one that it can."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from recipe.async_dapo_lab.gpu_check import __main__ as command
from recipe.async_dapo_lab.gpu_check import machine, minute, speed, training, watch
from recipe.async_dapo_lab.gpu_check.speed import SpeedSettings
from recipe.async_dapo_lab.gpu_check.verdicts import Verdict, failed, passed
from recipe.async_dapo_lab.quickstart.model_and_data import Assets

from .test_training import step


@pytest.mark.skipif("CUDA_VISIBLE_DEVICES" in os.environ, reason="a machine with a GPU")
def test_given_a_machine_without_a_gpu_when_checked_then_it_says_so_soon_and_fails(tmp_path, capsys) -> None:
    assert command.main(["--output", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().out
    assert "FAIL GPUs" in said and "set --device cpu" in said
    written = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
    assert written["counts"]["FAIL"] >= 2 and written["device"] == "cuda"
    assert written["checks"][-1]["found"] == "mend the machine first"
    assert all(check["remedy"] for check in written["checks"] if check["status"] == "FAIL")


@pytest.mark.parametrize("wrong", [["--gpus", "0"], ["--model", "/nowhere"], ["--tensor-parallel-size", "2"]])
def test_given_wrong_arguments_when_started_then_the_message_names_them(wrong, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(wrong)
    assert ended.value.code == 2 and f"{wrong[0]}={wrong[1]}" in capsys.readouterr().err


OUT_OF_MEMORY = "CUDA error: out of memory"
CASES = ("drafts", "partial, no async scheduling", "consistent", "two FSDP ranks", "one engine killed")


class Wired:
    """The command with two GPUs; what it starts is replaced by what good hardware would say."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, broken: str = "") -> None:
        self.asked: list[SpeedSettings] = []
        self.engines: list[str] = []  # of the first minute
        self.trained: list[training.Case] = []
        self._folder, self._broken = folder, broken
        monkeypatch.setattr(training, "find_spec", lambda name: name)
        good = dict.fromkeys(machine.NEEDED, passed("good"))
        monkeypatch.setattr(machine, "look", lambda device, gpus, output: good)
        monkeypatch.setattr(command, "prepare", lambda output, device: Assets(folder=output))
        monkeypatch.setattr(command, "make_config", lambda folder: folder)
        monkeypatch.setattr(command, "prepare_family", lambda name, output, device: Assets(folder=output))
        monkeypatch.setattr(minute, "measure", self._measure)
        monkeypatch.setattr(speed, "run_engine", self._run_engine)
        monkeypatch.setattr(speed, "judge_speed", lambda facts, ended: failed(ended, "mend") if ended else passed(""))
        monkeypatch.setattr(training, "train", self._train)

    def run(self, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        exit_code = command.main(["--gpus", "2", "--output", str(self._folder), *arguments])
        return exit_code, json.loads((self._folder / "gpu_check.json").read_text())["checks"]

    def _run_engine(self, settings: SpeedSettings, **_: Any) -> tuple[dict[str, Any], str]:
        self.asked.append(settings)
        return {}, OUT_OF_MEMORY if self._broken == "decode" else ""

    def _measure(self, engines: Sequence[str], *_: Any, **__: Any) -> Iterator[tuple[str, Verdict, dict[str, Any]]]:
        for key in engines:
            self.engines.append(key)
            for part in minute.ENGINES[key]:
                yield part, failed(OUT_OF_MEMORY, "mend") if key == self._broken else passed(""), {"before": [1]}

    def _train(self, case: training.Case, *_: Any, **__: Any) -> tuple[list[dict[str, float]], str]:
        self.trained.append(case)
        lost = {"async_dapo/load_balancer/lost_servers": float(case.kills_an_engine)}
        steps = [step(number, **lost) for number in range(1, case.steps + 1)]
        return (steps[:-1], OUT_OF_MEMORY) if case.name == self._broken else (steps, "")


@pytest.mark.parametrize("broken", ["decode", *CASES])
def test_given_two_gpus_when_one_thing_ends_badly_then_every_theme_is_told_and_only_its_check_fails(
    tmp_path, monkeypatch, broken: str
) -> None:
    wired = Wired(tmp_path, monkeypatch, broken=broken)
    exit_code, checks = wired.run()
    failures = [check for check in checks if check["status"] == "FAIL"]
    assert exit_code == 1 and [check["check"] for check in failures] == [broken]
    assert all(OUT_OF_MEMORY in check["found"] and check["remedy"] for check in failures)
    assert {check["theme"].split(".")[0] for check in checks} == set("1234")
    [engine] = wired.asked
    assert engine.dtype == "bfloat16" and engine.load_format == "dummy" and engine.max_num_seqs == 256


@pytest.mark.parametrize(("only", "theme"), [("2", "2. training"), ("3", "3. speed"), ("4", "4. several GPUs")])
def test_given_one_theme_when_asked_for_then_no_other_runs(tmp_path, monkeypatch, only: str, theme: str) -> None:
    exit_code, checks = Wired(tmp_path, monkeypatch).run("--only", only)
    assert exit_code == 0 and {check["theme"] for check in checks} == {"1. machine", theme}


def test_given_some_trainings_when_asked_for_then_no_other_runs(tmp_path, monkeypatch) -> None:
    asked = ("partial_stale_kv, host memory", "FP8 cache")
    exit_code, checks = Wired(tmp_path, monkeypatch).run("--only", "2", "--cases", *asked)
    trained = {check["check"] for check in checks if check["theme"] == "2. training"}
    assert exit_code == 0 and trained == set(asked)


def test_given_the_first_minute_then_an_engine_s_life_comes_before_all_and_the_costly_ones_last(
    tmp_path, monkeypatch
) -> None:
    wired = Wired(tmp_path, monkeypatch)
    exit_code, checks = wired.run("--minute")
    assert exit_code == 0 and wired.engines == list(minute.ENGINES) and wired.engines[0] == "life"
    assert [(case.name, case.steps) for case in wired.trained] == [("partial", 1), ("separate", 2)]
    assert [check["check"] for check in checks[-3:]] == ["separate", "least free memory", "leftovers"]
    assert all(case.environment[watch.MARK] for case in wired.trained)


def test_given_an_engine_that_does_not_start_when_the_minute_runs_then_nothing_else_takes_its_time(
    tmp_path, monkeypatch
) -> None:
    wired = Wired(tmp_path, monkeypatch, broken="life")
    exit_code, checks = wired.run("--minute")
    assert exit_code == 1 and wired.engines == ["life"] and not wired.trained
    assert {check["check"]: check["status"] for check in checks}["all other checks"] == "SKIP"


def test_given_parts_of_the_minute_when_asked_for_then_no_other_runs_and_each_failure_names_its_finding(
    tmp_path, monkeypatch
) -> None:
    wired = Wired(tmp_path, monkeypatch, broken="partial")
    _, checks = wired.run("--minute", "full", "step", "--beside")
    assert wired.engines == ["full"] and [case.name for case in wired.trained] == ["partial"]
    assert set(training.BESIDE) <= set(wired.trained[0].overrides)
    [failure] = [check for check in checks if check["status"] == "FAIL"]
    assert "(finding 13 of docs/gpu.md)" in failure["found"]


def test_given_one_gpu_then_engines_on_a_gpu_of_their_own_are_skipped_by_name(tmp_path, monkeypatch) -> None:
    wired = Wired(tmp_path, monkeypatch)
    _, checks = wired.run("--minute", "separate", "--gpus", "1")
    assert not wired.trained
    assert {check["check"]: check["found"] for check in checks}["separate"] == "needs --gpus 2"
