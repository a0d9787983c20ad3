"""How large the project is: python -m docs.size. Lines and files of Python that git knows; rooms, arrows of the recipe.

A room is a folder or a file directly in the recipe; an arrow leads from a room to one that it imports from.
"""

import subprocess
from pathlib import Path

import grimp

ROOT, RECIPE = Path(__file__).parents[1], "recipe.async_dapo"
PARTS = ("recipe/async_dapo", "recipe/async_dapo/extensions", "recipe/async_dapo_lab", "benchmarks", "tests", "docs")


def main() -> None:
    for part in PARTS:
        listed = subprocess.run(
            ["git", "ls-files", f"{part}/*.py"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        files = [ROOT / name for name in listed.stdout.splitlines()]
        print(
            f"{part:28} {sum(len(file.read_text('utf-8').splitlines()) for file in files):6} lines, {len(files)} files"
        )
    graph = grimp.build_graph(RECIPE)
    arrows = {
        (room(module), room(imported))
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
        if RECIPE not in (module, imported) and room(module) != room(imported)
    }
    print(f"{len({one for arrow in arrows for one in arrow})} rooms, {len(arrows)} arrows")


def room(module: str) -> str:
    return module.removeprefix(f"{RECIPE}.").split(".")[0]


if __name__ == "__main__":
    main()
