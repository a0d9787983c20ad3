"""Which small errors no test notices: `make mutants`, or `python -m tests.mutants --count 300 --seed 20261129`.

Each error is put into a copy of this checkout, where tests run that call the function it lies in: at most CALLERS of
them, drawn by chance. Says what survives, and which tests are the only killers of something; all is in
outputs/mutants.csv. A survivor gets a test. Tests that are never an only killer are candidates to go.
"""

import argparse
import csv
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from ..support.fork_server import executable
from .draw import Mutant, draw, probed

ROOT = Path(__file__).resolve().parents[2]
_NAMES = "agreement checks known_options known_values mini_batches old_options one_pass policy_health reward_processes"
_EXTENSIONS = tuple(f"extensions/{name}" for name in _NAMES.split())
FOLDERS = [f"recipe/async_dapo/{place}" for place in ("core", "rollout", "startup", *_EXTENSIONS)]
TESTS = [f"tests/{place}" for place in ("core", "coroutines", "startup")]
TESTS += [f"tests/{one}/{tier}" for one in _EXTENSIONS for tier in ("core", "coroutines", "startup")]
TESTS = [one for one in TESTS if (ROOT / one).exists()]
CALLERS = 12
ALL_S, EACH_S = 3600.0, 120.0  # the longest that all tests take, and those of a mutant: an endless one is noticed, too
LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "outputs", "site", "__pycache__", ".*_cache", ".hypothesis")
PROBE = "getattr(__import__('builtins'), 'CALLED', id)"  # not in processes that tests start


class Copy:
    """A checkout whose files are changed, and its tests run, each time in a fork that imports it anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(shutil.copytree(ROOT, folder / "copy", ignore=LEFT_OUT))
        (self.folder / ".venv").symlink_to(Path(sys.prefix))
        self._seen = folder / "seen.json"

    def run(self, tests: Sequence[str], *, limit_s: float) -> dict[str, dict[str, Any]] | None:
        """What `plugin` writes of each test; None if they do not come to an end, or cannot be collected."""
        self._seen.unlink(missing_ok=True)
        command = [executable(), "-m", "pytest", "-p", "tests.mutants.plugin", "-p", "no:cacheprovider"]
        command += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plugins that the fork has already
        own = {"MUTANTS_FILE": str(self._seen), "HYPOTHESIS_PROFILE": "few", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            subprocess.run(
                [*command, "-m", "not slow", "--timeout=60", *tests],
                cwd=self.folder,
                env=os.environ | own,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            return None
        seen: dict[str, dict[str, Any]] | None = json.loads(self._seen.read_text()) if self._seen.exists() else None
        return seen

    def callers(self, mutants: Sequence[Mutant]) -> list[list[str]]:
        """The tests that call each mutant's function, and pass."""
        for file in {mutant.file for mutant in mutants}:
            own = {number: mutant for number, mutant in enumerate(mutants) if mutant.file == file}
            (self.folder / file).write_text(probed((ROOT / file).read_text(), own, PROBE))
        seen = self.run(TESTS, limit_s=ALL_S)
        for file in {mutant.file for mutant in mutants}:
            shutil.copy(ROOT / file, self.folder / file)
        assert seen, "the tests do not run without a mutant"
        passed = {test: one["called"] for test, one in seen.items() if not one["failed"]}
        return [[test for test, called in passed.items() if number in called] for number in range(len(mutants))]

    def killers(self, mutant: Mutant, tests: Sequence[str]) -> list[str]:
        """Those of the tests that fail; all of them, if one hangs or they cannot be collected."""
        (self.folder / mutant.file).write_text(mutant.text)
        try:
            seen = self.run(tests, limit_s=EACH_S)
        finally:
            shutil.copy(ROOT / mutant.file, self.folder / mutant.file)
        return [test for test in tests if seen is None or seen.get(test, {}).get("failed")]


def judged(mutants: Sequence[Mutant], copy: Copy, *, seed: int) -> Iterator[dict[str, Any]]:
    for number, (mutant, callers) in enumerate(zip(mutants, copy.callers(mutants), strict=True)):
        tests = random.Random(seed + number).sample(callers, min(CALLERS, len(callers)))
        killers = copy.killers(mutant, tests) if tests else []
        yield {
            **{name: getattr(mutant, name) for name in ("file", "line", "function", "kind", "old", "new")},
            "callers": len(callers),
            "run": len(tests),
            "killers": " ".join(killers),
        }


def main(count: int, seed: int) -> None:
    mutants = draw(ROOT, FOLDERS, count, seed=seed)
    file = ROOT / "outputs" / "mutants.csv"
    file.parent.mkdir(exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="mutants") as folder, file.open("w", newline="") as output:
        for row in judged(mutants, Copy(Path(folder)), seed=seed):
            if not rows:
                writer = csv.DictWriter(output, row)
                writer.writeheader()
            writer.writerow(row)
            output.flush()
            rows.append(row)
    survivors = [row for row in rows if not row["killers"]]
    only = Counter(row["killers"].partition("::")[0] for row in rows if len(row["killers"].split(" ")) == 1)
    lines = [f"{row['file']}:{row['line']} {row['old']} -> {row['new']} ({row['run']} tests)" for row in survivors]
    lines += [f"only killers in {name}: {many}" for name, many in only.most_common() if name]
    sys.stdout.write("\n".join([*lines, f"{len(survivors)} of {len(rows)} survive (seed {seed}); {file}"]) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Which small errors no test notices.")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int(f"{date.today():%Y%m%d}"), help="default: the day")
    arguments = parser.parse_args()
    main(arguments.count, arguments.seed)
