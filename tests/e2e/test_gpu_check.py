"""The first hour on GPUs, as far as a CPU goes: the command, once, with a real engine and three training steps."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from recipe.async_dapo_lab.gpu_check.training import CASES
from recipe.async_dapo_lab.quickstart.model_and_data import Assets

from ..support.harness import run_module

pytestmark = pytest.mark.nightly

NEEDS_A_GPU = {"GPUs", "flash attention", "CUDA IPC"} | {case.name for case in CASES if case.on_gpus_only}
NEEDS_TWO = {"tensor parallel 2", "two FSDP ranks", "one engine killed"}


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
        "partial",
        "drafts",
        "experts",
        "images",
        "partial_stale_kv, host memory",
        "decode",
    }
    assert written["counts"]["FAIL"] == 0 and written["device"] == "cpu"


def test_given_a_cpu_when_checked_then_figures_are_measured_ones(written) -> None:
    found = {check["check"]: check["found"] for check in written["checks"]}
    for case in ("partial", "drafts"):
        assert re.match(r"steps of (\d+\.\d, ){2}\d+\.\d s, ", found[case])
    accepted = re.search(r"([\d.]+) tokens a step of an engine", found["drafts"])
    assert accepted is not None and float(accepted[1]) > 1
