"""What the first hour on GPUs asks of two of them: ranks that share an engine, that train; a dead engine."""

import json

import pytest

from .test_gpu_check import NEEDS_TWO, check

pytestmark = pytest.mark.nightly


def test_given_two_ranks_when_checked_then_they_train_and_the_killed_engine_is_the_one_that_is_lost(assets):
    folder = check(assets.folder.parent / "gpu_check_of_two", "--gpus", "2", "--only", "4")  # finds its model there
    checks = json.loads((folder / "gpu_check.json").read_text())["checks"]
    fourth = {check["check"]: check for check in checks if check["theme"].startswith("4.")}
    assert {name: check["status"] for name, check in fourth.items()} == dict.fromkeys(NEEDS_TWO, "PASS")
