"""Brings the generated parts of the documents up to date, between their marks: python -m docs.generate"""

import argparse
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd

from benchmarks.defaults import draw as defaults
from benchmarks.evaluation import summary as evaluation
from benchmarks.hours import summary as hours
from benchmarks.reach import summary as reach
from benchmarks.side_by_side import summary as side_by_side
from benchmarks.sources import draw as sources
from benchmarks.speed_ups import summary as speed_ups
from benchmarks.support.tables import markdown
from benchmarks.verl_job import summary as verl_job
from docs import declared
from docs import evidence_tables as evidence
from docs.memory import memory_table
from docs.support import support
from recipe.async_dapo.record.words import seconds
from recipe.async_dapo_lab.run_record import read_steps

ROOT = Path(__file__).parents[1]
STEPS_SHOWN = 3


def measured_on_cpu() -> str:
    return side_by_side.headline(side_by_side.read_runs(), side_by_side.read_earlier())


def quick_start_output() -> str:
    """What a reader looks for in its last lines, of the latest run of the default length."""
    runs = pd.read_csv(ROOT / "assets" / "quickstart" / "runs.csv")
    last = runs[runs["steps"] == runs["steps"].iloc[-1]].iloc[-1]
    return (
        f"    step {seconds(last.step_median_s)} s (median of {last.steps - 1}); ...; "
        f"accuracy {last.accuracy_before:.2f} to {last.accuracy_after:.2f}\n"
        f"    {last.steps} steps in {last.wall_s} s, at most {last.peak_memory_gb:.1f} GB of memory\n"
    )


def step_lines() -> str:
    """What a recorded run wrote, a line a step."""
    steps = read_steps(ROOT / "assets" / "report_pictures" / "partial" / "steps.jsonl")
    from recipe.async_dapo.extensions.loggers.step_line import step_line  # of which a copy may lack the folder

    trained = [step for step in steps if step.step > 0][:STEPS_SHOWN]
    return "".join(f"    {step_line(step.step, step.data)}\n" for step in trained)


def table(make: Callable[[], pd.DataFrame]) -> Callable[[], str]:
    return lambda: markdown(make())


EXAMPLES = {
    "data_set/make_data.py": "python",
    "reward/reward.py": "python",
    "judged_reward/judged_reward.py": "python",
    "agent_loop/checked_answer.py": "python",
    "agent_loop/agent_loops.yaml": "yaml",
    "tools/tools.py": "python",
    "agent_program/solver.py": "python",
    "agent_program/agents.yaml": "yaml",
    "agent_loop/guessing.py": "python",
    "tools/booking.py": "python",
    "tools/mcp_tool.py": "python",
}
LEARNED = ("recommendation", "alarm")  # of docs/evidence/learning.md
PROGRAM = ("agent_program/solver.py", "agent_program/agents.yaml")
AGENTS = (*PROGRAM, "agent_loop/guessing.py", "tools/booking.py", "tools/mcp_tool.py")  # shown in docs/agents.md


def example(name: str) -> str:
    return f"```{EXAMPLES[name]}\n{(ROOT / 'examples' / name).read_text()}```\n"


# Page -> mark -> what stands between `<!-- mark -->` and `<!-- end of mark -->`.
PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {
        "clusters": table(verl_job.headline_table),
        "range": defaults.range_of_all,
        "quick start": quick_start_output,
        "recommendation": partial(evidence.learned, "recommendation"),
    },
    "docs/get_started.md": {"step lines": step_lines},
    "docs/options.md": {
        "first options": table(declared.first_options),
        "options": table(declared.recipe_options),
        "rehearsal's options": table(declared.rehearsal_options),
        "verl's options": table(declared.verl_defaults),
    },
    "docs/metrics.md": {"is it helping": table(declared.healthy_ranges)},
    "docs/models.md": {"support": table(support), "reach": table(reach.counts)},
    "docs/gpu.md": {"first minute": table(evidence.first_minute)},
    "docs/cluster.md": {"memory": table(memory_table)},
    "docs/separate.md": {"measured": evidence.separate_measured},
    "docs/plan_check_rehearse.md": {
        "engines": table(declared.engines),
        "reference setting": table(evidence.reference_setting),
    },
    "docs/sources.md": {
        "as drawn": table(sources.as_drawn),
        "shared": table(sources.shared),
        "validation": table(evaluation.table),
    },
    "docs/your_own.md": {name: partial(example, name) for name in EXAMPLES if name not in AGENTS},
    "docs/agents.md": {name: partial(example, name) for name in AGENTS},
    "docs/off_policy.md": {"recommendation": partial(evidence.learned, "recommendation")},
    "docs/evidence/side_by_side.md": {
        "measured": measured_on_cpu,
        "side by side": evidence.side_by_side_table,
    },
    "docs/evidence/grid.md": {
        "clusters": table(defaults.clusters_table),
        "filter and drafts": table(verl_job.filter_and_drafts),
        "defaults": evidence.grid,
        "grids": table(defaults.grids_table),
        "verl's job": table(verl_job.seconds_table),
        "fitted": table(speed_ups.verls_job),
    },
    "docs/evidence/faults.md": {"fault matrix": evidence.struck},
    "docs/evidence/learning.md": {
        **{name: partial(evidence.learned, name) for name in LEARNED},
        "hours": table(hours.table),
    },
    "docs/evidence/rehearsal.md": {"speed-ups": speed_ups.said, "speed-ups table": table(speed_ups.table)},
    "docs/selection.md": {"selection": table(hours.selection)},
    "benchmarks/TARGETS.md": {
        "quick start": table(evidence.quick_start),
        "on-policy": evidence.on_policy_measured,
        "equals measured": evidence.equals_measured,
        "drafts measured": evidence.drafts_measured,
        "learning": partial(evidence.learned, "learning"),
        "settings": partial(evidence.learned, "settings"),
        "corrections": partial(evidence.learned, "corrections"),
        "screening": partial(evidence.learned, "screening"),
        "on-policy runs": partial(evidence.learned, "on-policy"),
        "real stack": partial(evidence.learned, "real stack"),
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


def main(*, only_checks: bool) -> None:
    made = {page: up_to_date(page) for page in PARTS}
    stale = [page for page, text in made.items() if text != (ROOT / page).read_text()]
    if only_checks and stale:
        sys.exit(f"not up to date: {', '.join(stale)}; run: python -m docs.generate")
    for page in stale:
        (ROOT / page).write_text(made[page])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m docs.generate")
    parser.add_argument("--check", action="store_true", help="change nothing, and fail where a page is not up to date")
    main(only_checks=parser.parse_args().check)
