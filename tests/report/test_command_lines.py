"""Command lines of the lab and of the benchmarks: a `~` that the shell leaves in a path means the user's home."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.async_dapo_lab import command_line, data
from recipe.async_dapo_lab.plan.inputs import Inputs
from recipe.async_dapo_lab.rehearsal.supervisor import output_folder

LAB = Path(command_line.__file__).parent
BENCHMARKS = LAB.parents[1] / "benchmarks"
PLACES = ("FILE", "FOLDER", "DIR", "RUN_DIR", "MODEL")


def arguments_of(file: Path) -> list[dict[str, str]]:
    """Of each argument that a file adds to a parser: its name, and what else is said of it, as it is written."""
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    added = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"]
    return [
        {"name": ast.unparse(call.args[0])} | {one.arg or "": ast.unparse(one.value) for one in call.keywords}
        for call in added
    ]


def test_every_argument_that_names_a_place_means_the_home_by_its_first_letter() -> None:
    arguments = [one for file in LAB.rglob("*.py") for one in arguments_of(file)]
    names = [one["name"] for one in arguments if any(place in one.get("metavar", "") for place in PLACES)]
    assert len(names) > 12
    for one in arguments:
        is_place = "ath" in one.get("type", "") or any(place in one.get("metavar", "") for place in PLACES)
        assert not is_place or one.get("type") in ("path", "os.path.expanduser"), one


def test_every_option_of_a_benchmark_that_names_a_place_means_the_home_by_its_first_letter() -> None:
    options = [one for file in BENCHMARKS.rglob("*.py") for one in arguments_of(file) if "--" in one["name"]]
    places = [one for one in options if "ath" in one.get("type", "")]
    assert len(places) > 12 and {one["type"] for one in places} == {"path"}


WITHOUT = """
import runpy, sys
from recipe.async_dapo.config import extensions
extensions.declared = dict
sys.modules["recipe.async_dapo.extensions"] = None
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("command", ["sources", "sources --fuzz 1", "gateway"])
def test_a_benchmark_whose_extensions_are_not_there_says_so(command: str) -> None:
    words = f"benchmarks.{command}".split()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *words], cwd=BENCHMARKS.parent, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1 and done.stderr.startswith("this benchmark measures extensions/"), done.stderr


def test_paths_in_the_home_are_found_and_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir("/")
    rows = [{"question": f"{number} + 1 = ?", "answer": str(number + 1)} for number in range(40)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data.main(["~/sums.jsonl", "--output=~/made"])
    assert (tmp_path / "made" / "train.parquet").exists()
    given = {"model": "~/model", "lengths": "~/lengths.jsonl", "calibrate": "~/engine.jsonl"}
    loaded = Inputs.load(given)
    assert [getattr(loaded, name) for name in given] == [place.replace("~", str(tmp_path)) for place in given.values()]
    assert Inputs.load({"model": "qwen3-8b"}).model == "qwen3-8b"
    assert output_folder(["rehearsal.output='~/rehearsed'"]) == tmp_path / "rehearsed"


@pytest.mark.parametrize("text", ["~nobody-has-this-name/x", "a/~", ""])
def test_what_is_no_home_stays_as_it_is(text: str) -> None:
    assert command_line.path(text) == Path(text)
