"""Tables of what recipe and rehearsal declare: options, with the comments of their yaml files. Which metrics exist."""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from recipe.async_dapo.record.keys import PREFIX, STALENESS_BUCKETS
from recipe.async_dapo_lab.plan.costs import ENGINES
from recipe.async_dapo_lab.plan.inputs import Inputs
from recipe.async_dapo_lab.rehearsal.options import NODE
from recipe.async_dapo_lab.report.health import RULES, Rule

RECIPES = Path(__file__).parents[1] / "recipe"
OPTIONS_FILE = RECIPES / "async_dapo" / "config" / "async_dapo_trainer.yaml"
FSDP_FILE = OPTIONS_FILE.parent / "training_engine" / "dp.yaml"  # of `actor_rollout_ref.actor`
REHEARSAL_FILE = RECIPES / "async_dapo_lab" / "rehearsal" / "options.yaml"
VERLS_OPTIONS = Path(str(distribution("verl").locate_file("verl/trainer/config/_generated_ppo_trainer.yaml")))
METRICS_PAGE = Path(__file__).parent / "metrics.md"
OWN_NODE = "async_dapo"
NOT_OPTIONS = ("hydra", "defaults")

# What to look at first: option -> when to turn it.
FIRST_OPTIONS = {
    "algorithm.filter_groups.metric": "your reward function returns the correctness under another name",
    "async_dapo.rollout_strategy": "you want on-policy data (`consistent`, `discard`) or no new prefill",
    "async_dapo.max_staleness": "importance weights vary too much (lower)",
    "async_dapo.importance_sampling": "`null` is `decoupled`; `bypass` saves a pass of log-probs a step",
    "async_dapo.rollout_pool_size": "you know better than the controller how much should run at once",
}

_KEY = re.compile(r"( *)([a-z_0-9]+):(.*)")
_METRIC = re.compile(rf"^\| `{PREFIX}(\S+)` \|", re.MULTILINE)


def recipe_options() -> pd.DataFrame:
    return _options(row for row in declared(OPTIONS_FILE) if row[0].startswith(f"{OWN_NODE}."))


def rehearsal_options() -> pd.DataFrame:
    """Without what means the same in the planner, whose `--help` explains it."""
    planners = Inputs.described().keys() - {"steps", "warmup"}
    return _options((NODE + key, *row) for key, *row in declared(REHEARSAL_FILE) if key not in planners)


def _options(rows: Iterable[Iterable[str]]) -> pd.DataFrame:
    cells = [(f"`{key}`", f"`{default}`", meaning) for key, default, meaning in rows]
    return pd.DataFrame(cells, columns=["Option", "Default", "Meaning"])


def declared(file: Path) -> Iterator[tuple[str, str, str]]:
    """Every key of a yaml file with its default and the comment above it."""
    parents: dict[int, str] = {}
    comment: list[str] = []
    for line in file.read_text().splitlines():
        if line.lstrip().startswith("#"):
            comment.append(line.lstrip(" #"))
            continue
        if match := _KEY.match(line):
            indent, key, default = len(match[1]), match[2], match[3].strip()
            parents = {depth: name for depth, name in parents.items() if depth < indent} | {indent: key}
            if default:
                yield ".".join(parents.values()), default, " ".join(comment)
        comment = []


def first_options() -> pd.DataFrame:
    """The options to look at first, with their defaults."""
    file = OmegaConf.load(OPTIONS_FILE)
    defaults = {key: OmegaConf.select(file, key, throw_on_missing=True) for key in FIRST_OPTIONS}
    shown = {key: "null" if value is None else value for key, value in defaults.items()}
    rows = [(f"`{key}`", f"`{shown[key]}`", advice) for key, advice in FIRST_OPTIONS.items()]
    return pd.DataFrame(rows, columns=["Option", "Default", "Turn it when"])


def verl_defaults() -> pd.DataFrame:
    """verl's own options that the recipe's yaml sets otherwise than verl does."""
    file: Any = OmegaConf.to_container(OmegaConf.load(OPTIONS_FILE))
    file["actor_rollout_ref"]["actor"] |= OmegaConf.load(FSDP_FILE)
    nodes = {name: node for name, node in file.items() if name not in (OWN_NODE, *NOT_OPTIONS)}
    verls = OmegaConf.load(VERLS_OPTIONS)
    changed = [(key, value) for key, value in _leaves(nodes) if value not in (OmegaConf.select(verls, key), {})]
    rows = [(f"`{key}`", f"`{'null' if value is None else value}`") for key, value in changed]
    return pd.DataFrame(rows, columns=["Option of verl", "Default here"])


def _leaves(node: dict, prefix: str = "") -> list[tuple[str, object]]:
    leaves: list[tuple[str, object]] = []
    for name, value in node.items():
        leaves += _leaves(value, f"{prefix}{name}.") if isinstance(value, dict) and value else [(prefix + name, value)]
    return leaves


def healthy_ranges() -> pd.DataFrame:
    """The rules that the report and the log give hints by."""
    rows = [(f"`{rule.key}`", rule.healthy, _advice(rule)) for rule in RULES]
    return pd.DataFrame(rows, columns=["Metric", "Healthy", "When it is not"])


def _advice(rule: Rule) -> str:
    sides = {"below": rule.below, "above": rule.above}
    told = [f"{side}: {advice}" for side, advice in sides.items() if advice]
    text = ". ".join(told) if len(told) > 1 else next(filter(None, sides.values()))
    return re.sub(r"\b(async_dapo\.\w+(=\w+)?|algorithm[\w.]+|data\.\w+)", r"`\1`", text)


def metrics() -> set[str]:
    """The metrics that the page explains, without their prefix; a row with a star stands for each staleness."""
    _, _, tables = METRICS_PAGE.read_text().partition("## All metrics")
    return {row.replace("*", bucket) for row in _METRIC.findall(tables) for bucket in STALENESS_BUCKETS}


ENGINE_CONSTANTS = {
    "step_overhead_ms": "a decode step, on top of memory traffic [ms]",
    "request_overhead_ms": "a running request, in each decode step [ms]",
    "bandwidth_share": "memory traffic, share of peak bandwidth",
    "prefill_flop_share": "prefill, share of peak FLOP/s",
    "all_reduce_us": "a sum over the GPUs of an engine, two a layer [us]",
}


def engines() -> pd.DataFrame:
    """The planner's engines: each constant's value, by name."""
    rows = [
        {"Input": f"`{name}`", "Of": what} | {f"`{engine}`": getattr(own, name) for engine, own in ENGINES.items()}
        for name, what in ENGINE_CONSTANTS.items()
    ]
    return pd.DataFrame(rows)
