"""What fresh tokens cost, and what the order of resumption is worth: python -m benchmarks.plan.frontier

The defaults on clusters whose engines have room to spare and on one that is full: with a cap on the share of tokens
from older versions, with nothing kept over a step, and with interrupted groups resumed in other orders. Writes
frontier.csv, a row a simulation, and goes on where it ends; a row takes a quarter of a minute, or one.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.defaults.settings import SETTINGS, Setting
from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo.core.pool import Dispatch
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo_lab.plan.measures import mean_of
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import System, recipe
from recipe.async_dapo_lab.plan.workload import ANSWERS

from .summary import FOLDER

CLUSTERS = ("8 x H200, B=64", "64 x H100, B=256", "8 x H200, B=512")
CAPS = (0.6, 0.4, 0.2, 0.1)
WARMUP, TRAJECTORIES = 8, 12_000
Order = Callable[[PromptGroup], Any]


def longest_left_tok(group: PromptGroup) -> int:
    """Of its trajectories, which nobody knows beforehand."""
    lens_tok = group.prompt[ANSWERS].response_lens_tok
    return max((lens_tok[one.session_id] - one.generated_tok for one in group.unfinished), default=0)


ORDERS: dict[str, Order] = {
    "longest context first": lambda group: -group.generated_tok,
    "shortest context first": lambda group: group.generated_tok,
    "longest remainder first": lambda group: -longest_left_tok(group),
    "certain groups first": lambda group: not group.is_certain,
}


class Reordered(TrainingRun):
    """Interrupted groups are resumed in another order than oldest first."""

    order: Order

    def _open_round(self) -> Dispatch:
        dispatch = super()._open_round()
        resumed, fresh = dispatch.groups[: dispatch.resumed], dispatch.groups[dispatch.resumed :]
        return replace(dispatch, groups=[*sorted(resumed, key=self.order), *fresh])


Variant = tuple[System, Order | None]


def variants() -> dict[str, Variant]:
    """By name."""
    caps: dict[str, Variant] = {
        f"at most {cap:g} off-policy": (recipe("capped", max_partial_share=cap), None) for cap in CAPS
    }
    fresh: Variant = (recipe("fresh", rollout_strategy="discard", stop_rule="drain"), None)
    orders: dict[str, Variant] = {name: (recipe("ordered"), order) for name, order in ORDERS.items()}
    return {"defaults": (recipe("defaults"), None)} | caps | {"nothing kept": fresh} | orders


def measure(setting: Setting, system: System, order: Order | None) -> dict[str, float]:
    scenario = setting.scenario()
    run = TrainingRun(scenario, system)
    if order is not None:
        run = Reordered(scenario, system)
        run.order = order
    for _ in range(WARMUP):
        run.step()
    steps = max(2, ceil(TRAJECTORIES / (setting.groups * setting.n)))
    mean = mean_of([run.step() for _ in range(steps)])
    return {
        "step_s": round(mean.step_s * run.natural_len_tok / mean.trained_len_tok, 2),  # of natural length
        "off_policy": round(mean.off_policy_ratio, 4),
        "staleness": round(mean.staleness_mean, 3),
        "prefill": round(mean.prefill_ratio, 4),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", nargs="+", choices=CLUSTERS, default=list(CLUSTERS))
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    file = RunsFile(options.output / "frontier.csv")
    for cluster in options.clusters:
        setting = next(one for one in SETTINGS if str(one).startswith(cluster))
        for name, (system, order) in variants().items():
            file.measure({"setting": str(setting), "variant": name}, partial(measure, setting, system, order))


if __name__ == "__main__":
    main()
