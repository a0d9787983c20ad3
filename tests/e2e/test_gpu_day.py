"""The quarter of an hour on one GPU, rehearsed on a CPU: a training that is checked, two systems, what they leave."""

import json

import pandas as pd
import pytest

from benchmarks.gpu_day.read import compared

from ..support.harness import run_module

pytestmark = pytest.mark.nightly

PARTS = ("training", "partial", "verl colocate_async, 0.05 s poll")


def test_given_a_cpu_when_rehearsed_then_each_part_ends_well_and_leaves_its_results(tmp_path) -> None:
    results = tmp_path / "results"
    options = ("--device", "cpu", "--output", str(results), "--minutes", "40", "--parts", "1", "2", "3")
    run_module("benchmarks.gpu_day.run", *options)
    about, *parts = map(json.loads, (results / "parts.jsonl").read_text().splitlines())
    assert about["device"] == "cpu" and about["commit"]
    assert [(part["part"], part["ended"]) for part in parts] == [(name, "well") for name in PARTS]
    assert any("PASS partial" in line and "k3 KL of fresh tokens" in line for line in parts[0]["last_lines"])
    runs = pd.read_csv(results / "runs.csv")
    assert list(runs["steps"]) == [6, 6] and (runs["step_s"] > 0).all()
    assert compared(runs)["ratio"].notna().all()
    left = {file.name for file in results.iterdir() if file.suffix != ".lock"}
    assert left == {"parts.jsonl", "runs.csv", "gpu_check_training.json"}
