"""The command of each example: it hands its options and the user's to the quick start, and leaves nothing behind."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.parent.name for path in ROOT.glob("examples/*/train.sh"))
BESIDE = (
    "import os, psutil; me = psutil.Process(os.getppid()); "
    "print(*(one.pid for one in me.parent().children() if one != me))"
)
QUICK_START = f"""\
printf '%s\\n' "$@" > given.txt
{sys.executable} -c '{BESIDE}' > beside.txt
printf '%s\\n' "${{TOOLS_SERVICE:-${{JUDGE_URL:-}}}}" "$QUICKSTART_WITHIN" > service.txt
exit 0
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository whose quick start only notes what it was given."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "quickstart.sh").write_text(QUICK_START)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "install.sh").touch()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / ".venv" / "bin" / "python").chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("example", EXAMPLES)
def test_one_command_trains_on_an_example_from_any_folder(checkout: Path, example: str) -> None:
    script = checkout / "examples" / example / "train.sh"
    (elsewhere := checkout / "elsewhere").mkdir()
    subprocess.run(["bash", str(script), "trainer.total_epochs=7"], cwd=elsewhere, check=True, timeout=300)
    given = (elsewhere / "given.txt").read_text().split("\n")
    assert given[:3] == ["--steps", "4", "--"] and given[-2:] == ["trainer.total_epochs=7", ""]
    named = [word.partition("=")[2].strip("'") for word in given]
    files = [file for file in named if file.endswith((".py", ".yaml", ".parquet"))]
    assert files and all((elsewhere / file).is_file() for file in files)


def test_relative_paths_of_the_quick_start_begin_where_its_user_stands(checkout: Path) -> None:
    shutil.copy(ROOT / "quickstart.sh", checkout)
    shows = '#!/bin/sh\nprintf \'%s\\n\' "$PWD" "$PYTHONPATH" "$@"\n'
    (checkout / ".venv" / "bin" / "python").write_text(shows)
    (elsewhere := checkout / "elsewhere").mkdir()
    command = ["bash", "../quickstart.sh", "--output", "mine"]
    call = partial(subprocess.run, command, cwd=elsewhere, capture_output=True, timeout=300, text=True)
    done = call(check=True, env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"})
    started = ["-m", "recipe.async_dapo_lab.quickstart", "--output", "mine"]
    assert done.stdout.splitlines() == [str(elsewhere), str(checkout), *started]
    for package in ("verl/__init__.py", "recipe/async_dapo"):  # as in a checkout of verl's
        (elsewhere / package).mkdir(parents=True)
        done = call(check=False)
        told = f"Python would take {elsewhere}/{package} for the one"
        assert done.returncode == 1 and told in done.stderr and "call it from another folder" in done.stderr
        (elsewhere / package).rmdir()


@pytest.mark.parametrize("example", ["judged_reward", "http_tools"])
def test_a_service_runs_on_a_free_port_beside_the_training_and_ends_with_it(checkout: Path, example: str) -> None:
    subprocess.run(["bash", str(checkout / "examples" / example / "train.sh")], cwd=checkout, check=True, timeout=300)
    [service] = map(int, (checkout / "beside.txt").read_text().split())
    with suppress(psutil.NoSuchProcess):
        psutil.Process(service).wait(300)
    address, within = (checkout / "service.txt").read_text().splitlines()
    assert re.match(r"http://127\.0\.0\.1:(?!876[56])\d{4,5}\b", address), "those had been everybody's"
    again = subprocess.run([*within.split(), "printenv"], cwd=checkout, check=True, capture_output=True, text=True)
    assert re.search(r"=http://127\.0\.0\.1:\d+", again.stdout), "a command that goes on has a service, too"
