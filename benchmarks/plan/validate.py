"""Published results against the simulator, with one set of constants: python -m benchmarks.plan.validate [--jobs 2]

Writes validation.csv, validation.png and the tables of README.md.
"""

import argparse
import csv
import re
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from .published_claims import Claim, claims, orders
from .published_settings import cases, run

HERE = Path(__file__).parents[2] / "assets" / "plan"


def table(results: Sequence[tuple[Claim, float]]) -> str:
    lines = ["| Source | What | Published | Simulated | Error |", "|---|---|---|---|---|"]
    for claim, value in results:
        error = value / claim.published - 1
        mark = "" if abs(error) <= 0.15 else " (miss)"
        cells = (claim.source, claim.what, f"{claim.published:g}", f"{value:.3g}", f"{100 * error:+.0f} %{mark}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(results: Sequence[tuple[Claim, float]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.27 * len(results) + 1.2), layout="constrained")
    axis = figure.subplots()
    names = [f"{claim.source}: {claim.what}" for claim, _ in results]
    errors = [100 * (value / claim.published - 1) for claim, value in results]
    axis.barh(names, errors, color=["#6cc5b0" if abs(error) <= 15 else "#ff725c" for error in errors])
    axis.axvspan(-15, 15, color="#6cc5b0", alpha=0.15)
    axis.axvline(0, color="black", lw=0.8)
    axis.invert_yaxis()
    axis.set_xlabel("simulated over published, error [%]; shaded: the target of 15 %")
    axis.tick_params(labelsize=8)
    figure.savefig(HERE / "validation.png", dpi=120)


def write_into_page(name: str, text: str) -> None:
    """Replace what stands between the marks of that name in README.md."""
    page = HERE / "README.md"
    marks = f"<!-- {name} -->", f"<!-- end of {name} -->"
    old = page.read_text()
    assert all(mark in old for mark in marks), f"README.md has no marks {marks}"
    pattern = re.compile(f"{re.escape(marks[0])}.*{re.escape(marks[1])}", re.DOTALL)
    page.write_text(pattern.sub(lambda _: f"{marks[0]}\n{text}\n{marks[1]}", old))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    runs = cases()
    with ProcessPoolExecutor(max_workers=parser.parse_args().jobs) as pool:
        means = dict(zip(runs, pool.map(run, runs.values()), strict=True))
    results = [(claim, claim.value(*(means[name] for name in claim.cases))) for claim in claims()]
    with open(HERE / "validation.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["source", "what", "published", "simulated", "error"])
        writer.writerows([c.source, c.what, c.published, f"{v:.4g}", f"{v / c.published - 1:.3f}"] for c, v in results)
    draw(results)
    held = [f"- {'holds' if holds else 'MISSED'}: {what}" for what, holds in orders(means)]
    write_into_page("validation", table(results))
    write_into_page("orders", "\n".join(held))


if __name__ == "__main__":
    main()
