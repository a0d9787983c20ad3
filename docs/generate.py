"""Brings the generated parts of the documents up to date, between their marks: python -m docs.generate"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd

from benchmarks.between_rounds import summary as between_rounds
from benchmarks.control_plane import summary as control_plane
from benchmarks.corrections import summary as corrections
from benchmarks.defaults import draw as defaults
from benchmarks.drafts import grid as drafts
from benchmarks.engine_bound import summary as engine_bound
from benchmarks.faults import summary as faults
from benchmarks.frontier import draw as frontier
from benchmarks.null_test import summary as null_test
from benchmarks.on_policy import run as on_policy
from benchmarks.plan import summary as plan
from benchmarks.published import summary as published
from benchmarks.selection import summary as selection
from benchmarks.side_by_side import summary as side_by_side
from benchmarks.strategies import summary as strategies
from benchmarks.support.tables import markdown
from docs import declared
from docs.memory import memory_table

ROOT = Path(__file__).parents[1]


def measured_on_cpu() -> str:
    return side_by_side.headline(side_by_side.read_runs(), side_by_side.read_earlier())


def quick_start_output() -> str:
    """The rows of its last table that a reader looks for, of the latest run of the default length."""
    runs = pd.read_csv(ROOT / "assets" / "quickstart" / "runs.csv")
    last = runs[runs["steps"] == runs["steps"].iloc[-1]].iloc[-1]
    return (
        f"    accuracy before -> after            {last.accuracy_before:.2f} -> {last.accuracy_after:.2f}\n"
        f"    seconds per step, median            {last.step_median_s:.2f}\n"
    )


def soak() -> str:
    runs = faults.read_soak()
    commits = ", ".join(f"`{commit}`" for commit in runs["commit"].unique())
    return f"{markdown(faults.soak_table(runs))}\n{markdown(faults.growth_table())}\nCommit: {commits}.\n"


def fault_matrix() -> str:
    runs = faults.read_runs()
    commits = ", ".join(f"`{commit}`" for commit in runs["commit"].unique())
    return f"{markdown(faults.matrix_table(runs))}\n{faults.totals(runs)}Commits: {commits}.\n"


def quick_start() -> pd.DataFrame:
    return _titled(pd.read_csv(ROOT / "assets" / "quickstart" / "runs.csv"))


def stop_latency() -> pd.DataFrame:
    return _titled(pd.read_csv(ROOT / "assets" / "stop_latency" / "runs.csv"))


def front_end() -> pd.DataFrame:
    measured = pd.read_csv(ROOT / "assets" / "front_end" / "front_end.csv")
    return measured.set_axis(["Requests", "Tokens", "verl [us]", "This recipe [us]", "Ratio"], axis="columns")


def pieces() -> pd.DataFrame:
    measured = pd.read_csv(ROOT / "assets" / "front_end" / "pieces.csv")
    return measured.set_axis(["Tokens", "Piece [tokens]", "CPU per token [us]"], axis="columns")


def _titled(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns in words, with the unit that their names end in."""
    units = {r"_ms$": " [ms]", r"_s$": " [s]", r"_gb$": " [GB]"}
    titles = frame.columns.to_series().replace(units, regex=True).str.replace("_", " ")
    return frame.set_axis(titles.str[0].str.upper() + titles.str[1:], axis="columns")


def table(make: Callable[[], pd.DataFrame]) -> Callable[[], str]:
    return lambda: markdown(make())


def table_of(runs: Callable[[], pd.DataFrame], make: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[], str]:
    return lambda: markdown(make(runs()))


EXAMPLES = {
    "data_set/make_data.py": "python",
    "reward/reward.py": "python",
    "judged_reward/judged_reward.py": "python",
    "agent_loop/checked_answer.py": "python",
    "agent_loop/agent_loops.yaml": "yaml",
    "tools/tools.py": "python",
    "agent_loop/guessing.py": "python",
    "tools/booking.py": "python",
    "tools/mcp_tool.py": "python",
}
AGENTS = ("agent_loop/guessing.py", "tools/booking.py", "tools/mcp_tool.py")  # shown in docs/agents.md


def example(name: str) -> str:
    return f"```{EXAMPLES[name]}\n{(ROOT / 'examples' / name).read_text()}```\n"


# Page -> mark -> what stands between `<!-- mark -->` and `<!-- end of mark -->`.
PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {
        "clusters": table(defaults.headline_table),
        "range": defaults.range_of_all,
        "measured": measured_on_cpu,
        "quick start": quick_start_output,
    },
    "docs/options.md": {
        "first options": table(declared.first_options),
        "options": table(partial(declared.options, "async_dapo")),
        "rehearsal's options": table(partial(declared.options, "rehearsal")),
        "verl's options": table(declared.verl_defaults),
    },
    "docs/metrics.md": {"is it helping": table(declared.healthy_ranges), "metrics": declared.metrics},
    "docs/reliability.md": {
        "fault matrix": fault_matrix,
        "soak": soak,
        "delivery in pieces": table(pieces),
    },
    "docs/corrections.md": {
        "exact": table(corrections.exact_table),
        "learned": table_of(corrections.read_runs, corrections.learning_table),
    },
    "docs/cluster.md": {"memory": table(memory_table)},
    "docs/concurrency.md": {"frontier": table(plan.frontier_table)},
    "docs/planner.md": {
        "reference setting": table(plan.reference_table),
        "drafts": table(drafts.summary),
        "frontier": table(frontier.committed_table),
        "validation": table(plan.published_table),
        "orders": table(plan.orders_table),
        "calibration": table(plan.calibration_table),
        "scale": table(plan.scale_table),
    },
    "docs/rehearsal.md": {
        "null test": table_of(null_test.read_runs, null_test.null_table),
        "speed-ups": table_of(engine_bound.read_all, engine_bound.speedups_table),
        "published": table_of(published.read_runs, published.published_table),
    },
    "docs/selection.md": {
        "training frequency": table(selection.frequency_table),
        "reference": table(selection.reference_table),
        "measured": table_of(selection.read_runs, selection.runs_table),
        "visits": table(selection.visits_table),
        "best": table(selection.best_table),
        "long answers first": table(on_policy.order_table),
        "tail rounds": table(on_policy.tail_table),
    },
    "docs/your_own.md": {name: partial(example, name) for name in EXAMPLES if name not in AGENTS},
    "docs/agents.md": {name: partial(example, name) for name in AGENTS},
    "docs/results.md": {
        "quick start": table(quick_start),
        "stop latency": table(stop_latency),
        "control plane": table_of(control_plane.read_runs, control_plane.actors_table),
        "control plane growth": table_of(control_plane.read_runs, control_plane.growth_table),
        "control plane comparison": table_of(control_plane.read_runs, control_plane.comparison_table),
        "between rounds": table_of(between_rounds.read_runs, between_rounds.between_table),
        "defaults": table(defaults.results_table),
        "means of the defaults": table(defaults.means_table),
        "engine bound": table_of(engine_bound.read_runs, engine_bound.engine_bound_table),
        "front end": table(front_end),
        "side by side seconds": table_of(side_by_side.read_runs, side_by_side.seconds_table),
        "side by side ratios": table_of(side_by_side.read_runs, side_by_side.ratios_table),
        "side by side costs": table_of(side_by_side.read_runs, side_by_side.costs_table),
        "side by side measures": table_of(side_by_side.read_runs, side_by_side.measures_table),
        "side by side runs": table_of(side_by_side.read_runs, side_by_side.runs_table),
        "side by side earlier": table_of(side_by_side.read_earlier, side_by_side.seconds_table),
        "side by side earlier ratios": table_of(side_by_side.read_earlier, side_by_side.ratios_table),
        "side by side earlier measures": table_of(side_by_side.read_earlier, side_by_side.measures_table),
        "strategies": table_of(strategies.read_runs, strategies.strategies_table),
        "strategies runs": table_of(strategies.read_runs, strategies.runs_table),
    },
}


def up_to_date(page: str) -> str:
    """The text of a page with its generated parts as they should be."""
    text = (ROOT / page).read_text()
    for mark, make in PARTS[page].items():
        marked = rf"(<!-- {mark} -->\n).*?(<!-- end of {mark} -->)"
        text, found = re.subn(marked, partial(_replaced, part=make()), text, flags=re.DOTALL)
        assert found == 1, f"{page} has no place for `{mark}`, or more than one"
    return text


def _replaced(match: re.Match[str], *, part: str) -> str:
    return match[1] + part + match[2]


if __name__ == "__main__":
    for page in PARTS:
        (ROOT / page).write_text(up_to_date(page))
