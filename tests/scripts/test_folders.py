"""Each folder of tests can be run alone, as `CONTRIBUTING.md` says: what it imports warns of nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FOLDERS = sorted({file.parent.name for file in TESTS.glob("*/test_*.py")})


@pytest.mark.nightly
@pytest.mark.parametrize("folder", FOLDERS)
def test_given_one_folder_when_its_tests_are_collected_then_all_are_found(folder: str) -> None:
    command = [sys.executable, "-m", "pytest", f"tests/{folder}", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:]
