"""The first hour on GPUs, as far as a CPU goes: the command, once, with a real engine and three training steps."""

import json
from pathlib import Path
from typing import Any

import pytest

from recipe.async_dapo_lab.quickstart.model_and_data import Assets

from ..support.harness import run_module

pytestmark = pytest.mark.nightly

NEEDS_A_GPU = {"driver and CUDA", "GPUs", "flash attention", "sleep level 1", "sleep level 2", "FP8 cache"}
NEEDS_TWO = {"gloo all-reduce", "tensor parallel 2", "two FSDP ranks", "one engine killed"}


def check(folder: Path, *arguments: str) -> Path:
    """The command on the CPU."""
    own = ("--device", "cpu", "--output", str(folder), "--timeout-s", "600")
    run_module("recipe.async_dapo_lab.gpu_check", *own, *arguments)
    return folder


@pytest.fixture(scope="module")
def output(assets: Assets) -> Path:
    return check(assets.folder.parent / "gpu_check")  # finds its model there


@pytest.fixture(scope="module")
def written(output: Path) -> dict[str, Any]:
    return json.loads((output / "gpu_check.json").read_text())


def test_given_a_cpu_when_checked_then_all_passes_but_what_needs_gpus(written) -> None:
    statuses = {check["check"]: check["status"] for check in written["checks"]}
    assert {name for name, status in statuses.items() if status == "SKIP"} == NEEDS_A_GPU | NEEDS_TWO
    assert {name for name, status in statuses.items() if status == "PASS"} >= {
        "versions",
        "generate",
        "log-probs of engine, trainer",
        "abort",
        "pause and resume",
        "prefix cache",
        "weights",
        "partial",
        "drafts by suffix decoding",
        "decode and prefill",
    }
    assert written["counts"]["FAIL"] == 0 and written["device"] == "cpu"


def test_given_a_cpu_when_checked_then_figures_are_measured_ones(written) -> None:
    measured = {check["check"]: check["measured"] for check in written["checks"]}
    assert 0 < measured["log-probs of engine, trainer"]["mean_diff"] < 1e-5
    assert measured["weights"]["bytes"] > 256 << 20 and measured["weights"]["send_s"] > 0
    assert measured["pause and resume"]["meanwhile_tok"] == 0
    assert 0 < measured["drafts by suffix decoding"]["accepted_tok"] < measured["drafts by suffix decoding"]["tokens"]
    assert len(measured["partial"]["step_s"]) == 3 and all(s > 0 for s in measured["partial"]["step_s"])


def test_given_a_cpu_when_checked_then_the_planners_record_is_there_and_its_step(output, written) -> None:
    lines = [json.loads(line) for line in (output / "speed.jsonl").read_text().splitlines()]
    assert len(lines) == 6 and all(line["tokens_per_s"] > 0 for line in lines)
    [speed] = [check["measured"] for check in written["checks"] if check["check"] == "decode and prefill"]
    assert speed["step_s"] > speed["rollout_s"] > 0
