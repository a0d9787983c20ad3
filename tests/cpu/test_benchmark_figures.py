"""What the side-by-side benchmark makes of a run, and of runs, on figures made by hand."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.side_by_side import draw
from benchmarks.side_by_side import run as side_by_side
from benchmarks.support.runs_file import Row, RunsFile, read
from recipe.async_dapo.cpu.run_metrics import ACCURACY, STEP_S, RunMetrics


def run_of(steps: dict[int, dict[str, float]]) -> RunMetrics:
    return RunMetrics(file=Path("none"), by_step=steps)


def step(seconds: float, **own: float) -> dict[str, float]:
    return {
        STEP_S: seconds,
        "timing_s/gen": seconds / 2,
        "response_length/mean": 10.0,
        side_by_side.STALENESS: 1.0,
        **own,
    }


def test_warm_up_and_steps_after_a_validation_are_left_out() -> None:
    slow, fast = 100.0, 2.0
    steps = {0: {ACCURACY: 0.1}} | {at: step(slow) for at in (1, 2, 3)} | {at: step(fast) for at in range(4, 9)}
    steps[5][ACCURACY] = 0.4
    steps[6] = step(slow)
    asked: list[list[int]] = []
    load = SimpleNamespace(idle_share=lambda steps: asked.append(steps) or 0.25)

    figures = side_by_side.figures(run_of(steps), load)

    assert figures["step_s_mean"] == fast and figures["rollout_s_mean"] == fast / 2
    assert figures["trained_tok_per_s"] == 10 * side_by_side.TRAJECTORIES_PER_STEP / fast
    assert figures["validations"] == "0.0:0.1000 304.0:0.4000"
    assert asked == [[4, 7, 8]], "the validation itself is not between two steps' lines"


def test_both_sides_have_a_waste() -> None:
    ours = [
        {
            "async_dapo/tokens/trained": 300.0,
            "async_dapo/tokens/filtered": 500.0,
            "async_dapo/tokens/discarded": 100.0,
            "async_dapo/partial/off_policy_token_ratio": 0.5,
        }
    ]
    theirs = [{key: 1.0} for key in side_by_side.VERL_DISCARDS] + [{}]

    assert side_by_side.recipe_figures(ours, [300.0]) == {"generated_tok": 900, "waste": 0.25, "off_policy": 0.5}
    assert side_by_side.verl_figures(theirs)["waste"] == round(2 / (2 + 3 * side_by_side.PROMPTS_PER_STEP), 4)


def row(**own: object) -> Row:
    given = {"generated_tok": 4000, "step_s_mean": 4.0, "rollout_s_mean": 3.0, "trained_tok_per_s": 250, "waste": 0}
    return {name: str(value) for name, value in (given | own).items()}


def test_the_bound_counts_no_discarded_tokens() -> None:
    assert draw.share_of_bound(row(), 4000.0) == pytest.approx((1 + 1) / 4)
    wasteful = row(generated_tok=4000 + 3000, waste=0.75)  # 3,000 discarded tokens beside 1,000 trained ones
    assert draw.share_of_bound(wasteful, 4000.0) == pytest.approx(draw.share_of_bound(row(), 4000.0))
    assert draw.share_of_bound(row(generated_tok=""), 4000.0) is None


def test_a_ratio_of_medians_comes_with_those_within_its_repetitions() -> None:
    runs = [row(repetition=i, step_s_mean=s) for i, s in enumerate((1.0, 2.0, 9.0))]
    base = [row(repetition=i, step_s_mean=s) for i, s in enumerate((4.0, 8.0, 4.0))]
    assert draw.ratio_of_steps(runs, base) == "0.50 (0.25, 0.25, 2.25)"
    assert draw.ratio_of_steps(runs, base[1:]) == "0.92 (0.25, 1.25, 2.25)", "only repetitions that both have"
    assert draw.ratio_of_steps(runs, base[:1]) == "0.25"
    assert draw.ratio_of_steps(runs, []) == ""


def test_seconds_to_an_accuracy_are_interpolated_between_validations() -> None:
    run = row(validations="0.0:0.20 50.0:0.30 100.0:0.50")
    assert draw.seconds_to(0.40, run) == pytest.approx(75.0)
    assert draw.seconds_to(0.60, run) is None
    assert draw.seconds_to_midway([run], [run]) == "62"  # of 0.35
    assert draw.seconds_to_midway([run, row(validations="0.0:0.10 90.0:0.20")], [run]) == "not reached by all"


def test_a_runs_file_keeps_older_rows_when_columns_are_added(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("tail,step_s\n8,1.5\n")
    runs = RunsFile(path)
    assert runs.has(tail=8) and not runs.has(tail=25)

    runs.add({"tail": 25, "step_s": 2.5, "staleness": 0.5})

    runs.measure({"tail": 8}, lambda: pytest.fail("measured again"))
    runs.measure({"tail": 2}, lambda: {"step_s": 4.5})  # without the newer column

    older, newer, last = read(path)
    assert older == {"tail": "8", "step_s": "1.5", "staleness": "", "commit": ""}
    assert newer["staleness"] == "0.5" and newer["commit"]
    assert (last["tail"], last["step_s"], last["staleness"]) == ("2", "4.5", "")
