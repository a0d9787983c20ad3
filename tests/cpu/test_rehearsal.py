"""The command of a rehearsal, with a scripted process in place of the one that trains."""

from ..support import verl_imported  # noqa: F401, I001 (first of all)

import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipe.async_dapo.record.keys import IDLE_RATIO, OFF_POLICY, STEP_S, WASTE_RATIO
from recipe.async_dapo_lab.rehearsal import supervisor
from recipe.async_dapo_lab.rehearsal.emulation import use_stand_in
from recipe.async_dapo_lab.rehearsal.options import WITH_REHEARSAL, RehearsalOptions
from recipe.async_dapo_lab.rehearsal.report import STALENESS

from ..support.composed_runs import compose_run
from ..support.forked import in_a_fork

OVERRIDES = (
    "rehearsal.stand_in=True",
    "rehearsal.steps=3",
    "rehearsal.warmup=1",
    "trainer.device=cuda",
    "trainer.nnodes=1",
    "trainer.n_gpus_per_node=2",
    "data.train_batch_size=8",
    "data.max_response_length=2048",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
)
METRICS = {
    STEP_S: 2.0,
    "response_length/mean": 500.0,
    IDLE_RATIO: 0.25,
    WASTE_RATIO: 0.0,
    OFF_POLICY: 0.5,
    STALENESS: 1.0,
}
SPANS_S = (90.0, 40.0, 60.0)
STEPS = [1, 2, 3]


def rehearsed(folder: Path, command: list[str]) -> tuple[int | str | None, str]:
    """Exit code, and what is told; in a process of its own, which adopts orphans from then on."""
    pytest.MonkeyPatch().setattr(supervisor, "_command", lambda *_: command)
    code: int | str | None = 0
    with redirect_stdout(StringIO()) as told:
        try:
            supervisor.main([*OVERRIDES, f"rehearsal.output={folder}"])
        except SystemExit as ended:
            code = ended.code
    return code, told.getvalue()


def leave_files_of_a_run(files: Path, folder: Path) -> None:
    """What a rehearsal into `folder` would have written there."""
    config = compose_run([*WITH_REHEARSAL, *OVERRIDES, f"rehearsal.output={folder}"])
    options = RehearsalOptions.from_hydra(config)
    use_stand_in(config, options)
    config.trainer.total_training_steps = options.steps  # as of every rehearsal
    files.mkdir()
    OmegaConf.save(config, files / "config.yaml")
    spans = [
        {"step": step, "step_s": step_s, "rollout_s": step_s / 2, "trainer_late_s": 0.1, "engines_late_s": [0.0]}
        for step, step_s in zip(STEPS, SPANS_S, strict=True)
    ]
    metrics = [{"step": step, "data": METRICS} for step in STEPS]
    for name, lines in ((options.spans_file.name, spans), ("metrics.jsonl", metrics)):
        (files / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_given_a_run_of_three_steps_when_it_ends_then_table_and_file_tell_their_virtual_seconds(tmp_path) -> None:
    folder = tmp_path / "run"
    leave_files_of_a_run(tmp_path / "files", folder)
    code, told = in_a_fork(rehearsed, folder, ["sh", "-c", f"mv {tmp_path}/files/* {folder}"])
    assert code == 0
    minutes, _, _ = told.partition("Emulated engines do not feel")  # none, if the process has ended before a look
    assert not minutes or minutes.startswith("This takes about ")
    assert "Emulated engines do not feel" in told and "Bound:" in told and "Valid: " in told
    rows = [line.split() for line in told.splitlines()]
    assert [row[:3] for row in rows if row[1:] and row[0] in {"1", "2", "3", "mean"} and row[1].endswith(".0")] == [
        ["1", "90.0", "45.0"],
        ["2", "40.0", "20.0"],
        ["3", "60.0", "30.0"],
        ["mean", "50.0", "25.0"],
    ]
    document = json.loads((folder / "rehearsal.json").read_text())
    assert [step["step"] for step in document["steps"]] == STEPS and document["num_gpus"] == 2


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("print('Traceback ...'); print('async_dapo: rehearsal.steps=0: must be >= 1'); sys.exit(1)", "async_dapo: re"),
        ("print('no room'); sys.exit(1)", "no room"),
        ("print('no step')", "no step"),
    ],
    ids=["refused", "failed", "no step"],
)
def test_given_a_run_that_has_not_trained_when_it_ends_then_the_last_line_says_why(tmp_path, code, last) -> None:
    ended, told = in_a_fork(rehearsed, tmp_path / "run", [sys.executable, "-c", f"import sys; {code}"])
    assert ended == 1 and told.splitlines()[-1].startswith(last)
    assert ("train.log" in told) is not last.startswith("async_dapo")
    assert not (tmp_path / "run" / "rehearsal.json").exists()
