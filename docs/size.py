"""How large the project is: python -m docs.size. Lines and files of Python that git knows; the files that one reads to
follow a prompt through a step; each extension's lines; rooms, arrows of the recipe.

A room is a folder or a file directly in the recipe; an arrow leads from a room to one that it imports from.
"""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import grimp

ROOT, RECIPE = Path(__file__).parents[1], "recipe.async_dapo"
RECIPE_FOLDER = ROOT / "recipe" / "async_dapo"
EXTENSIONS = "recipe/async_dapo/extensions"
PARTS = ("recipe/async_dapo", EXTENSIONS, "recipe/async_dapo_lab", "benchmarks", "tests", "docs")
STEP_PAGE, STEP_HEADING = ROOT / "docs" / "architecture.md", "## The life of a prompt"
_FILE = re.compile(r"`([\w/]+\.py)`")


def main() -> None:
    for part in PARTS:
        _say(part, python_files(part))
    _say("core: without extensions", [one for one in python_files(PARTS[0]) if EXTENSIONS not in one.as_posix()])
    _say("reading path of a step", [RECIPE_FOLDER / name for name in reading_path()])
    for folder in sorted(one.parent for one in (ROOT / EXTENSIONS).glob("*/declared.py")):
        _say(f"extensions/{folder.name}", python_files(f"{EXTENSIONS}/{folder.name}"))
        _say("  its tests", python_files(f"tests/extensions/{folder.name}"))
    graph = grimp.build_graph(RECIPE)
    arrows = {
        (room(module), room(imported))
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
        if RECIPE not in (module, imported) and room(module) != room(imported)
    }
    print(f"{len({one for arrow in arrows for one in arrow})} rooms, {len(arrows)} arrows")


def python_files(part: str) -> list[Path]:
    """Those of a folder that git knows."""
    command = ["git", "ls-files", f"{part}/*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines()]


def reading_path() -> list[str]:
    """The files of the recipe that the page of a step names, in its order."""
    section = STEP_PAGE.read_text("utf-8").partition(f"{STEP_HEADING}\n")[2].partition("\n## ")[0]
    return list(dict.fromkeys(_FILE.findall(section)))


def _say(what: str, files: Iterable[Path]) -> None:
    sizes = [len(file.read_text("utf-8").splitlines()) for file in files]
    print(f"{what:28} {sum(sizes):6} lines, {len(sizes)} files")


def room(module: str) -> str:
    return module.removeprefix(f"{RECIPE}.").split(".")[0]


if __name__ == "__main__":
    main()
