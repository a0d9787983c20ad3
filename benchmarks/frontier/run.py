"""The rows that a frontier needs beside those of the grid: strategies without old tokens, caps on their share, drafts.
All of it is simulated.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.defaults.run import measure, ours
from benchmarks.defaults.settings import Setting
from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo_lab.plan.candidates import COLOCATE_WITH_DRAFTS, Candidate, baselines, with_drafts

CLUSTERS = ("1 x H100, B=32", "2 x H200, B=32", "8 x H200, B=64", "8 x H100, B=128", "16 x H100, B=64")
ACCEPTED = 0.6  # drafted tokens of a request and step, assumed
DRAFTS = ", drafts"  # at the end of a name
CAPS = (0.2, 0.5)
OPTIONS: dict[str, dict[str, Any]] = {
    "discard fifo": {"rollout_strategy": "discard", "stop_rule": "fifo"},
    "discard drain": {"rollout_strategy": "discard", "stop_rule": "drain"},
    "consistent": {"rollout_strategy": "consistent", "stop_rule": "first_completed"},
    **{f"default, at most {cap:g}": {"max_partial_share": cap} for cap in CAPS},
}
DRAFTING = {name: options for name, options in OPTIONS.items() if name != "consistent"} | {"default": {}}


def run(folder: Path, setting: Setting) -> None:
    """Simulate what the file does not have yet."""
    file = RunsFile(folder / "runs.csv")
    for name, options in OPTIONS.items():
        file.measure({"setting": str(setting), "system": name}, partial(_measure, setting, ours(name, **options), {}))
    inputs = {"drafts_accepted": ACCEPTED}
    for name, options in DRAFTING.items():
        plain = ours(name + DRAFTS, **options)
        candidate = replace(plain, system=with_drafts(plain.system))
        cell = {"setting": str(setting), "system": name + DRAFTS}
        file.measure(cell, partial(_measure, setting, candidate, inputs))
    colocate = next(one for one in baselines(setting.scenario(**inputs)) if one.system.name == COLOCATE_WITH_DRAFTS)
    cell = {"setting": str(setting), "system": COLOCATE_WITH_DRAFTS}
    file.measure(cell, partial(_measure, setting, colocate, inputs))


def _measure(setting: Setting, candidate: Candidate, inputs: dict[str, Any]) -> dict[str, Any]:
    row = measure(setting, "", candidate, **inputs)
    kept = ("step_s", "trained_tok", "withheld_tok", "off_policy", "staleness_mean", "length_bias", "waste")
    return {name: row[name] for name in kept}
