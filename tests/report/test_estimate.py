"""The estimate against verl's sync mode: the planner on a run's own record, and silence where that says little."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.record import keys
from recipe.async_dapo.record.run_files import RUN_FILE
from recipe.async_dapo_lab.report.headline import Estimate, estimate
from recipe.async_dapo_lab.report.responses import length_lines
from recipe.async_dapo_lab.report.run import Run
from recipe.async_dapo_lab.report.write import write_report
from recipe.async_dapo_lab.run_files import LENGTHS_FILE, BoundedFile

from ..support.recorded_runs import write_recipe_run, write_verl_run

SETTINGS = {
    "model": "of-the-hub/model",
    "data.train_batch_size": 8,
    "rollout.n": 4,
    "data.max_response_length": 4096,
    "over_sampling_batch_size": "auto",
    "rollout_pool_size": "None",
    "engines": 2,
}
LONG_TAIL, EVEN = [200, 250, 300, 4000], [1187] * 4  # tokens


def record(folder: Path, lens_tok: list[int], **options: str) -> Run:
    write_recipe_run(folder, steps=6)
    description = json.loads((folder / RUN_FILE).read_text())
    (folder / RUN_FILE).write_text(json.dumps(description | {"settings": SETTINGS | options}))
    file = BoundedFile(folder / LENGTHS_FILE)
    for step in range(1, 7):
        outcomes = [(str(i), Verdict.FILTERED if i % 3 == 0 else Verdict.VALID) for i in range(12)]
        groups = [
            GroupOutcome(prompt_uid=uid, verdict=verdict, response_lens_tok=tuple(lens_tok))
            for uid, verdict in outcomes
        ]
        file.add(*length_lines(step, groups))
    return Run.load(folder)


def test_the_steps_of_verl_are_simulated_with_the_lengths_of_the_run(tmp_path: Path) -> None:
    runs = [record(tmp_path / name, lens_tok) for name, lens_tok in (("long", LONG_TAIL), ("even", EVEN))]
    long, even = map(estimate, runs)
    assert long is not None and even is not None
    assert long.speed_up > 1.5 * even.speed_up > 0, "as long a mean, but verl waits for the longest of every batch"
    steady = runs[0].steady(keys.STEP_S)
    assert long.gpu_hours == pytest.approx(8 * 6 * sum(steady) / len(steady) / 3600)


@pytest.mark.slow
def test_the_page_says_that_it_is_an_estimate_and_only_where_nothing_was_measured(tmp_path: Path) -> None:
    run = record(tmp_path / "run", LONG_TAIL)
    alone = write_report([run.folder]).read_text()
    assert "; estimated " in alone and "x of verl sync" in alone and "To measure it" in alone
    both = write_report([run.folder, write_verl_run(tmp_path / "verl")]).read_text()
    assert "estimated" not in both.lower() and "; measured " in both


def test_what_is_saved_is_told_in_gpu_hours() -> None:
    assert str(Estimate(speed_up=1.46, gpu_hours=39)) == "estimated 1.46x of verl sync, 18 of 57 GPU hours saved"
    assert str(Estimate(speed_up=0.9, gpu_hours=39)) == "estimated 0.90x of verl sync"


def test_a_run_that_says_too_little_gets_no_estimate(tmp_path: Path) -> None:
    run = record(tmp_path / "run", LONG_TAIL)
    assert estimate(replace(run, by_step={1: run.by_step[1]})) is None
    (run.folder / "lengths.jsonl").unlink()
    assert estimate(run) is None
