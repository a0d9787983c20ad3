"""Parts of a run that are killed or stopped at chosen moments: it goes on or ends with the cause named, and resumes."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.faults import chain, life
from benchmarks.faults.cells import SAMPLE, Stack
from benchmarks.faults.chain import Chain
from benchmarks.faults.commands import command_of
from benchmarks.faults.summary import faults_of

# On a busy machine; how soon a run starts and ends is measured on a free one.
HUNG_S = 150.0
START_S = 1500.0
FOLLOW_S = 60.0


def test_given_a_sample_of_faults_when_a_run_meets_them_then_it_goes_on_and_no_prompt_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "START_LIMIT_S", START_S)
    monkeypatch.setattr(life, "GRACE_S", FOLLOW_S)
    rows: list[dict[str, Any]] = []
    Chain(Stack.EMULATED, command_of(Stack.EMULATED, tmp_path), tmp_path, seed=0, add=rows.append).play(SAMPLE)
    assert [row["who"] for row in rows] == [cell.who for cell in SAMPLE]
    assert [row["outcome"] for row in rows] == ["continued", "continued", "ended"]
    assert {row["who"]: wrong for row in rows if (wrong := set(faults_of(pd.Series(row))) - {"late"})} == {}
    assert all(float(row["seconds"]) < HUNG_S for row in rows)
    assert [row["steps"] for row in rows] == sorted(row["steps"] for row in rows) and rows[-1]["steps"] >= len(rows)
