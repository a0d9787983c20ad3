"""Writes the README's generated tables: options and metrics from where they are declared, the others from their runs.

python -m benchmarks.support.readme_tables
"""

import re
from functools import partial
from pathlib import Path

import yaml

import benchmarks.control_plane.table as control_plane
import benchmarks.side_by_side.draw as side_by_side
import benchmarks.strategies.draw as strategies
from benchmarks.support.tables import table
from recipe.async_dapo.training.metrics import METRICS, PREFIX, STALENESS_BUCKETS

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
OPTIONS_FILE = ROOT / "recipe" / "async_dapo" / "config" / "async_dapo_trainer.yaml"

_KEY = re.compile(r"( *)([a-z_]+):(.*)")
_BUCKET = "|".join(map(re.escape, STALENESS_BUCKETS))


def options_table() -> str:
    """Every key of the `async_dapo` node with its default and the comment above it."""
    rows = []
    parents: dict[int, str] = {}
    comment: list[str] = []
    for line in _node_lines():
        if line.lstrip().startswith("#"):
            comment.append(line.lstrip(" #"))
        elif match := _KEY.match(line):
            indent, key, default = len(match[1]), match[2], match[3].strip()
            parents = {depth: name for depth, name in parents.items() if depth < indent} | {indent: key}
            if default:
                rows.append((f"`{'.'.join(parents.values())}`", f"`{default}`", " ".join(comment)))
            comment = []
        else:
            comment = []
    return table(("Option `async_dapo.*`", "Default", "Meaning"), rows)


def metrics_table() -> str:
    """Every metric; those that differ by a staleness only share a row."""
    rows: dict[str, str] = {}
    for name, meaning in METRICS.items():
        family = re.sub(rf"/(staleness_)?({_BUCKET})(?=/|$)", r"/\1*", name)
        rows.setdefault(family, re.sub(rf"(staleness|age) ({_BUCKET})\b", r"\1 *", meaning))
    return table((f"Metric `{PREFIX}*`", "Meaning"), [(f"`{name}`", meaning) for name, meaning in rows.items()])


def with_tables(text: str) -> str:
    """The README's text with its tables brought up to date between their markers."""
    tables = {
        "options": options_table(),
        "metrics": metrics_table(),
        "control plane": table(control_plane.HEAD, control_plane.table_rows()),
        "strategies": table(strategies.HEAD, strategies.table_rows()),
        "side by side": table(side_by_side.HEAD, side_by_side.table_rows()),
    }
    for name, rows in tables.items():
        marked = rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)"
        text, found = re.subn(marked, partial(_replaced, rows=rows), text, flags=re.DOTALL)
        assert found == 1, f"README.md has no place for the {name} table"
    return text


def _replaced(match: re.Match[str], *, rows: str) -> str:
    return match[1] + rows + match[2]


def _node_lines() -> list[str]:
    """The lines of the yaml file that belong to the node `async_dapo`, one level out."""
    lines = OPTIONS_FILE.read_text().splitlines()
    start = lines.index("async_dapo:") + 1
    end = next(i for i in range(start, len(lines)) if lines[i] and not lines[i].startswith(" "))
    assert yaml.safe_load("\n".join(lines[start:end])), "the node is not a mapping"
    return [line[2:] for line in lines[start:end]]


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text()))
