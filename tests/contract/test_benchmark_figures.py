"""What benchmarks make of a run, and of runs, on figures made by hand."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from benchmarks.defaults.draw import FOLDER
from benchmarks.defaults.settings import SETTINGS
from benchmarks.side_by_side import run as side_by_side
from benchmarks.side_by_side import summary
from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo.record.keys import STEP_S
from recipe.async_dapo_lab.plan.candidates import bound_of
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


def runs_of(*rows: dict[str, object]) -> pd.DataFrame:
    given = {"tail": 8, "engines": 1, "system": "partial", "repetition": 0, "bound_tok_per_s": 4000.0}
    given |= {"bound_before": 4000.0, "bound_after": 4000.0}
    given |= {"step_s_mean": 4.0, "rollout_s_mean": 3.0, "trained_tok_per_s": 250, "generated_tok": 4000, "waste": 0}
    return pd.DataFrame([given | own for own in rows])


def test_the_bound_counts_no_discarded_tokens() -> None:
    wasteful = {"generated_tok": 4000 + 3000, "waste": 0.75}  # 3,000 discarded tokens beside 1,000 trained ones
    shares = summary.share_of_bound(runs_of({}, wasteful, {"generated_tok": None}))
    assert shares[:2].tolist() == pytest.approx([(1 + 1) / 4] * 2)
    assert pd.isna(shares[2])


def test_a_ratio_leaves_out_runs_between_which_the_machine_drifted() -> None:
    steady, slower = {"bound_after": 3700.0}, {"bound_before": 3700.0, "bound_after": 3500.0}
    early = {"bound_after": None, "repetition": 2}  # without a second bound
    ours = [steady | {"step_s_mean": 2.0}, steady | {"repetition": 1, "step_s_mean": 9.0}, early | {"step_s_mean": 2.0}]
    sync = [{}, slower | {"repetition": 1}, {"repetition": 2}]

    [row] = (
        summary.ratios(runs_of(*ours, *({"system": summary.SYNC} | one for one in sync)))
        .query("system == 'partial'")
        .itertuples()
    )
    assert (row.repetitions, row.unjudged, row.drifted, row.ratio) == (2, 1, 1, 0.5)

    [alone] = (
        summary.ratios(runs_of(ours[1], {"system": summary.SYNC} | sync[1])).query("system == 'partial'").itertuples()
    )
    assert (alone.repetitions, alone.drifted) == (0, 1) and pd.isna(alone.ratio)


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


NOISE = 0.03  # of a window of few steps, and of the bound's sample of prompts


@pytest.mark.slow
def test_no_rollout_of_the_grid_is_faster_than_the_bound() -> None:
    rows = pd.read_csv(FOLDER / "systems.csv")
    rows = rows[rows["step_s"].notna()]
    bounds_s = {str(one): bound_of(one.scenario()).rollout_s for one in SETTINGS}
    share = rows["setting"].map(bounds_s) / (rows["rollout_s"] / rows["length_bias"])
    assert share.notna().all()
    assert share.max() <= 1 + NOISE, rows.loc[share > 1 + NOISE, ["setting", "system"]]


@pytest.mark.nightly
def test_side_by_side_starts_in_a_process_that_has_loaded_nothing() -> None:
    """verl's modules can be imported on CPUs only after the platform plugin, which comes with vLLM."""
    command = [sys.executable, "-m", "benchmarks.side_by_side", "--help"]
    started = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert started.returncode == 0, started.stderr
