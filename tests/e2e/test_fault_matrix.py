"""The whole fault matrix: every part at every moment."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults.cells import MATRIX
from benchmarks.faults.summary import faults_of, read_runs
from benchmarks.faults.two_nodes import may_cut

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 7200

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(LIMIT_S + 60)
def test_given_every_part_at_every_moment_when_it_is_struck_then_nothing_hangs_and_nothing_is_lost(tmp_path) -> None:
    command = [sys.executable, "-m", "benchmarks.faults", "--output", str(tmp_path), "--logs", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=LIMIT_S)
    runs = read_runs(tmp_path)
    played = [cells for stack, cells in MATRIX.items() if not stack.has_two_nodes or may_cut()]
    assert len(runs) == sum(map(len, played))
    assert {tuple(row[["who", "when", "how"]]): wrong for _, row in runs.iterrows() if (wrong := faults_of(row))} == {}
