"""Parts of a run that are stopped at chosen moments, or killed (with --nightly): it goes on, or ends with the cause
named and resumes.

The run is a rehearsal, on emulated engines, so what its first life has left is what a rehearsal leaves.
"""

import json
import shutil
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
from omegaconf import OmegaConf

from benchmarks.faults import chain, life
from benchmarks.faults.cells import SAMPLE, STOP, Cell, Stack
from benchmarks.faults.chain import Chain
from benchmarks.faults.commands import command_of
from benchmarks.faults.summary import faults_of
from recipe.async_dapo.record.checkpoint_folder import COMPLETE_FILE, verify
from recipe.async_dapo_lab.rehearsal.options import RehearsalOptions
from recipe.async_dapo_lab.rehearsal.report import Ended, load_rehearsal

from ..support.fork_server import ForkedTraining
from ..support.harness import ledger_closes

# On a busy machine; how soon a run starts and ends is measured on a free one.
HUNG_S = 600.0
START_S = 1500.0
FOLLOW_S = 60.0
GO_ON = [cell for cell in SAMPLE if cell.how == STOP]  # in one life; the others end theirs
MIXED = (
    "async_dapo.importance_sampling=mixture",
    "async_dapo.max_tokens_per_round=1024",  # so that trajectories are interrupted, however fast the machine is
)


class ForkedLife(life.Life):
    def _driver(self, command: list[str], environment: dict[str, str], log: Path) -> ForkedTraining:
        return ForkedTraining(command, environment=environment, log_file=log)


class Struck(NamedTuple):
    """Cells that a run has met: its folder, with one for each life, and a row for each cell."""

    cells: Sequence[Cell]
    folder: Path
    rows: list[dict[str, Any]]


@pytest.fixture(scope="module", params=[GO_ON, pytest.param(SAMPLE, marks=pytest.mark.nightly)], ids=len)
def struck(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Struck:
    folder, lives, rows = tmp_path_factory.mktemp("struck"), count(1), list[dict[str, Any]]()
    command = command_of(Stack.EMULATED, folder)

    def command_of_life(shared: Path) -> list[str]:
        return [*command(shared), *MIXED, f"rehearsal.output={folder / f'life-{next(lives)}'}"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "LIMIT_S", HUNG_S)
        patch.setattr(chain, "START_LIMIT_S", START_S)
        patch.setattr(life, "GRACE_S", FOLLOW_S)
        Chain(Stack.EMULATED, command_of_life, folder, seed=0, add=rows.append, life=ForkedLife).play(request.param)
    return Struck(request.param, folder, rows)


def test_given_a_sample_of_faults_when_a_run_meets_them_then_it_goes_on_and_no_prompt_is_lost(struck) -> None:
    rows = struck.rows
    assert [row["who"] for row in rows] == [cell.who for cell in struck.cells]
    assert [row["outcome"] for row in rows] == ["continued" if cell.how == STOP else "ended" for cell in struck.cells]
    assert {row["who"]: wrong for row in rows if (wrong := set(faults_of(pd.Series(row))) - {"late"})} == {}
    assert [row["steps"] for row in rows] == sorted(row["steps"] for row in rows) and rows[-1]["steps"] >= len(rows)


def test_given_a_rehearsal_when_it_trains_then_it_mixes_versions_and_loses_nothing_on_the_way(struck) -> None:
    folder = struck.folder
    lines = [json.loads(line)["data"] for line in (folder / "1-metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "timing_s/step" in line]
    assert all(ledger_closes(step) and step["async_dapo/ledger/failed"] == 0 for step in steps)
    assert max(step["response_length/max"] for step in steps) <= 2048
    assert sum(step["async_dapo/mixture/scored_trajectories"] for step in steps) > 0, "no group mixed versions"
    complete = [note.parent for note in (folder / "checkpoints").glob(f"global_step_*/{COMPLETE_FILE}")]
    assert complete, "a kill may interrupt the newest one, not all"
    assert all((one / "actor").is_dir() and verify(one).step > 0 for one in complete)


def test_given_a_gpu_configuration_when_rehearsed_then_it_says_how_fast_it_would_be(struck) -> None:
    folder = struck.folder
    own = folder / "life-1"
    shutil.copy(folder / "1-metrics.jsonl", own / "metrics.jsonl")
    config = OmegaConf.load(own / "config.yaml")
    rehearsal = load_rehearsal(config, RehearsalOptions.from_hydra(config), Ended(wall_s=1.0, peak_memory_bytes=1))
    assert [step.step for step in rehearsal.steps] == list(range(1, 1 + len(rehearsal.steps)))
    assert len(rehearsal.steps) > 2 and rehearsal.num_gpus == 2
    for step in rehearsal.steps:
        assert step.bound_share > 0 and 0 <= step.idle < 1 and step.step_s > step.rollout_s > 0
    assert rehearsal.mean.bound_share <= 1.2, "faster than the GPUs allow"
