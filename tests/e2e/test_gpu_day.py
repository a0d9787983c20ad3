"""The quarter of an hour on one GPU, rehearsed on a CPU: every part, what they leave, and what is read from it."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks.gpu_day.read import compared
from benchmarks.gpu_day.run import PARTS
from recipe.async_dapo_lab.gpu_check.machine import THEME

from ..support.harness import run_module

pytestmark = pytest.mark.nightly

END = {"least free memory": "PASS", "leftovers": "PASS"}
LIFE = ("engine starts", "same after sleep", "new weights are seen", "abort of 64 requests", "engine ends", "partial")
CHECKED = {  # by each part that is a `gpu_check`
    "life": {**dict.fromkeys(LIFE, "PASS"), **END},
    "pressure": {
        "the same, asynchronous": "SKIP",
        **dict.fromkeys(("full cache", "full cache, host memory", "full cache, own head drafts"), "PASS"),
        **END,
    },
    "stale": {"partial_stale_kv, host memory": "PASS"},
    "fp8": {"FP8 cache, two updates": "PASS" if torch.cpu._is_avx512_supported() else "SKIP", **END},
    "training": {"partial": "PASS", "FP8 cache": "SKIP"},
    "families": {"experts": "PASS", "images": "PASS"},
    "speed": {"decode": "PASS"},
    "compiled": {"partial, compiled": "SKIP"},
}
NUM_SYSTEMS, STEPS = len(PARTS) - len(CHECKED), 6


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    results = tmp_path_factory.mktemp("gpu_day") / "results"
    run_module("benchmarks.gpu_day.run", "--device", "cpu", "--output", str(results), "--minutes", "55")
    return results


def test_given_a_cpu_when_rehearsed_then_every_part_ends_well_and_leaves_its_results(results) -> None:
    about, *lines = map(json.loads, (results / "parts.jsonl").read_text().splitlines())
    assert about["device"] == "cpu" and about["commit"]
    parts = {line["part"]: line for line in lines if "part" in line}
    assert {name: part["ended"] for name, part in parts.items()} == {part.name: "well" for part in PARTS}
    assert {line["left_by"]: line["left"] for line in lines if "left" in line} == {part.name: [] for part in PARTS}
    assert any("PASS partial" in line and "k3 KL of fresh tokens" in line for line in parts["life"]["last_lines"])
    runs = pd.read_csv(results / "runs.csv")
    assert list(runs["steps"]) == [STEPS] * NUM_SYSTEMS and (runs["step_s"] > 0).all()
    assert compared(runs)["ratio"].notna().all()
    for name, statuses in CHECKED.items():
        checks = json.loads((results / f"gpu_check_{name}.json").read_text())["checks"]
        assert {one["check"]: one["status"] for one in checks if one["theme"] != THEME} == statuses
    left = {file.name for file in results.iterdir() if file.suffix != ".lock"}
    assert left == {"parts.jsonl", "runs.csv", *(name for part in PARTS for name in part.brings.values())}


def test_given_results_of_every_part_when_read_then_all_are_kept_and_told(results, tmp_path) -> None:
    said = run_module("benchmarks.gpu_day.read", str(results), "--assets", str(tmp_path / "assets"))
    statuses = [f"{status} {check}: " for checks in CHECKED.values() for check, status in checks.items()]
    assert all(words in said for words in (*statuses, *(part.name for part in PARTS), "points"))
    assert {file.name for file in (tmp_path / "assets").iterdir()} >= {"runs.csv", "calibration.jsonl"}
