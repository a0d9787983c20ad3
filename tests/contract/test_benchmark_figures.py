"""What benchmarks make of a run, and of runs, on figures made by hand."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from benchmarks.defaults import run as grid
from benchmarks.side_by_side import run as side_by_side
from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo.record.keys import STEP_S
from recipe.async_dapo_lab.quickstart.run_metrics import ACCURACY, RunMetrics
from tests.support.documents import ROOT


def run_of(steps: dict[int, dict[str, float]]) -> RunMetrics:
    return RunMetrics(file=Path("none"), by_step=steps)


def step(seconds: float, **own: float) -> dict[str, float]:
    return {
        STEP_S: seconds,
        "timing_s/gen": seconds / 2,
        "response_length/mean": 10.0,
        side_by_side.STALENESS: 1.0,
        **{f"timing_s/{part}": seconds / 8 for part in side_by_side.TRAINER_PARTS},
        **own,
    }


def test_warm_up_and_steps_after_a_validation_are_left_out() -> None:
    slow, fast = 100.0, 2.0
    steps = {0: {ACCURACY: 0.1}} | {at: step(slow) for at in (1, 2, 3)} | {at: step(fast) for at in range(4, 9)}
    steps[5][ACCURACY] = 0.4
    steps[6] = step(slow)
    asked: list[list[int]] = []
    cpu_s_per_step = 6.4
    load = SimpleNamespace(
        idle_share=lambda steps: asked.append(steps) or 0.25, step_cpu_s=lambda steps: [cpu_s_per_step for _ in steps]
    )

    figures = side_by_side.figures(run_of(steps), load)

    assert figures["step_s_mean"] == fast and figures["rollout_s_mean"] == fast / 2
    assert figures["trained_tok_per_s"] == 10 * side_by_side.TRAJECTORIES_PER_STEP / fast
    assert figures["step_s_p90"] == fast and figures["old_log_prob_s"] == fast / 8
    assert figures["cpu_ms_per_trajectory"] == 1000 * cpu_s_per_step / side_by_side.TRAJECTORIES_PER_STEP
    assert figures["validations"] == "0.0:0.1000 304.0:0.4000"
    assert asked == [[4, 7, 8]], "the validation itself is not between two steps' lines"


def test_both_sides_have_a_waste() -> None:
    ours = [
        {
            "async_dapo/tokens/trained": 300.0,
            "async_dapo/tokens/filtered": 500.0,
            "async_dapo/tokens/discarded": 100.0,
            "async_dapo/partial/off_policy_token_ratio": 0.5,
            side_by_side.REPREFILLED_TOK: 70.0,
        }
    ]
    theirs = [{key: 1.0} for key in side_by_side.VERL_DISCARDS] + [{}]

    figures = {"generated_tok": 900, "waste": 0.25, "off_policy": 0.5, "reprefilled_tok": 70}
    assert side_by_side.recipe_figures(ours, [300.0]) == figures
    assert side_by_side.verl_figures(theirs)["waste"] == round(2 / (2 + 3 * side_by_side.PROMPTS_PER_STEP), 4)


def test_a_runs_file_keeps_older_rows_when_columns_are_added(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("tail,step_s\n8,1.5\n")
    runs = RunsFile(path)
    assert runs.has(tail=8) and not runs.has(tail=25)

    runs.add({"tail": 25, "step_s": 2.5, "staleness": 0.5})

    runs.measure({"tail": 8}, lambda: pytest.fail("measured again"))
    runs.measure({"tail": 2}, lambda: {"step_s": 4.5})  # without the newer column

    older, newer, last = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
    assert older == {"tail": "8", "step_s": "1.5", "staleness": "", "commit": ""}
    assert newer["staleness"] == "0.5" and newer["commit"]
    assert (last["tail"], last["step_s"], last["staleness"]) == ("2", "4.5", "")


@pytest.mark.parametrize(("share", "cap"), [(0.9, None), (0.63, 0.75), (0.05, None)])
def test_an_equal_share_has_the_loosest_cap_that_keeps_it(share: float, cap: float | None) -> None:
    def measure_at(limit: float | None) -> dict[str, object]:
        reached = 0.72 if limit is None else max(0.2, 0.8 * limit + 0.02)
        return {"off_policy": reached, "step_s": 1 / reached, "cap": limit}

    row = grid.equal_share(measure_at, share=share)

    assert row["cap"] == cap
    assert bool(row.get("refused")) == (share < 0.2) == (row["step_s"] == "")


@pytest.mark.slow
def test_side_by_side_starts_in_a_process_that_has_loaded_nothing() -> None:
    """verl's modules can be imported on CPUs only after the platform plugin, which comes with vLLM."""
    command = [sys.executable, "-m", "benchmarks.side_by_side", "--help"]
    started = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert started.returncode == 0, started.stderr
