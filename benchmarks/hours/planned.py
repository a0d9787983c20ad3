"""What a step of each mode takes on one cluster of the grid, simulated: rows of `planned.csv`.

A mode is a way to train whose learning was recorded (benchmarks/learning), or whose tokens were counted
(benchmarks/selection): then the share of valid groups is set so that a trained group takes as many fewer tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.defaults.run import measure, ours
from benchmarks.defaults.settings import SETTINGS
from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo_lab.plan.candidates import Candidate, baseline, with_drafts
from recipe.async_dapo_lab.plan.systems import verl_colocate_async, verl_sync

SETTING = "64 x H100, B=256, n=8, 8K, median 4K, sigma 0.9"
VALID_SHARE = 0.6
FOLDER = Path(__file__).parents[2] / "assets" / "hours"
SELECTION = FOLDER.parent / "selection" / "runs.csv"
ON_POLICY, DEFAULT, BOUND_4 = "on-policy", "default", "4"  # of `staleness` in the laboratory's runs
SYNC, COLOCATE, PARTIAL, DRAFTS = "verl sync", "verl colocate_async", "partial", "partial, drafts"
DISCARD, CONSISTENT = "discard, fifo", "consistent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """
    Attributes:
        learned: bound of the laboratory's runs with tokens as old; None: it has none of five seeds in three tasks.
        inputs: of the planner, beside the cluster's.
    """

    name: str
    candidate: Candidate
    learned: str | None
    inputs: Mapping[str, Any] = field(default_factory=dict)


def modes() -> list[Mode]:
    """The reference first."""
    setting = next(one for one in SETTINGS if str(one) == SETTING)
    groups = setting.groups
    partials = [
        Mode(name=f"{PARTIAL}, bound {bound}", candidate=ours(PARTIAL, max_staleness=bound), learned=str(bound))
        for bound in (1, 2)
    ]
    drafted = ours(DRAFTS)
    return [
        Mode(name=SYNC, candidate=baseline(verl_sync(groups=groups)), learned=ON_POLICY),
        Mode(name=COLOCATE, candidate=baseline(verl_colocate_async(groups=groups)), learned=DEFAULT),
        Mode(
            name=DISCARD,
            candidate=ours(DISCARD, rollout_strategy="discard", stop_rule="fifo"),
            learned=ON_POLICY,
        ),
        *partials,
        Mode(name=f"{PARTIAL}, bound 4, the default", candidate=ours(PARTIAL), learned=DEFAULT),
        Mode(name=f"{PARTIAL}, bound 4, tokens as old as it allows", candidate=ours(PARTIAL), learned=BOUND_4),
        Mode(
            name=DRAFTS,
            candidate=Candidate(
                system=with_drafts(drafted.system), strategy=drafted.strategy, stop_rule=drafted.stop_rule
            ),
            learned=DEFAULT,
            inputs={"drafts_accepted": 0.6, "drafts_accepted_ratio": 0.4},
        ),
        *(
            Mode(
                name=f"{PARTIAL}, history as on {task}",
                candidate=ours(PARTIAL),
                learned=None,
                inputs={"valid_share": round(VALID_SHARE / ratio, 3)},
            )
            for task, ratio in selected_tokens().items()
        ),
    ]


def selected_tokens() -> dict[str, float]:
    """Tokens of a trained group with selection by history over those without, by task."""
    runs = pd.read_csv(SELECTION)
    means = runs[runs["prompts"] == "96"].groupby(["task", "row"])["tok_per_group"].mean().unstack()
    return (means["history"] / means["without"]).to_dict()


def run(path: Path) -> None:
    """Simulate what the file does not have yet."""
    file = RunsFile(path)
    setting = next(one for one in SETTINGS if str(one) == SETTING)
    for mode in modes():
        file.measure({"mode": mode.name}, partial(measure, setting, "", mode.candidate, **mode.inputs))
