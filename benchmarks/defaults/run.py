"""Every system in every setting, simulated: rows of `systems.csv`.

The default is this recipe's yaml as it is. Hand-tuned rows are those of the planner's sweep that are not slower than
others by construction: partial under two stop rules, and discard that drains, with two pool sizes around
what fills the KV cache. `default, equal share` has the loosest cap (`max_partial_share`) with which the share of older
tokens is not above that of verl's colocate_async: the share that a cap leads to lies below the cap.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log2
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo.config.values import ConfigError, RolloutStrategy
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo_lab.plan.candidates import (
    VLLM_CALL_LIMIT,
    Candidate,
    baseline,
    baselines,
    natural_concurrency,
    recipe_candidates,
)
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.sweep import simulate
from recipe.async_dapo_lab.plan.systems import recipe, verl_colocate_async

from .settings import Setting

KINDS = ("baseline", "default", "tuned")
COLOCATE = "verl colocate_async"
HOST_KV, HOST_GIB = "default, KV in host memory", 128  # a GPU, more than any KV cache here
COLOCATE_ALIKE = "verl colocate_async, no pass"  # `bypass`: as a step of one update is trained here
DEFAULT, EQUAL_SHARE = "default", "default, equal share"
CAPS = tuple(percent / 100 for percent in range(10, 100, 5))  # tried for an equal share


def candidates(setting: Setting) -> list[tuple[str, Candidate]]:
    """(kind, system) of a setting, but for the one that needs another's result."""
    scenario = setting.scenario()
    tuned = recipe_candidates(
        scenario,
        strategies=[RolloutStrategy.PARTIAL, RolloutStrategy.DISCARD],
        pool_sizes=pool_sizes(scenario),
    )
    tuned = [one for one in tuned if one.strategy != RolloutStrategy.DISCARD or one.stop_rule == StopRuleName.DRAIN]
    host_kv = ours(HOST_KV, rollout_strategy="partial_stale_kv", host_kv_gib=HOST_GIB)
    alike = verl_colocate_async(groups=setting.groups)
    alike = replace(alike, name=COLOCATE_ALIKE, habits=replace(alike.habits, always_scores=False))
    beside = [("baseline", baseline(alike)), ("default", host_kv)] if scenario.updates == 1 else []
    return [
        *(("baseline", one) for one in baselines(scenario)),
        ("default", ours(DEFAULT)),
        *beside,
        *(("tuned", one) for one in tuned if one.concurrency is not None),
    ]


def pool_sizes(scenario: Scenario) -> list[int]:
    """Pool sizes worth trying: around what fills the KV cache, no more than the servers accept; where that is more than
    a batch, also one and two batches, which are fresher."""
    natural = natural_concurrency(scenario)
    most = scenario.num_servers * min(scenario.max_num_seqs, VLLM_CALL_LIMIT - 1)
    batch = scenario.train_batch_size * scenario.rollout_n
    sizes = [0.5 * natural, natural, *(size for size in (batch, 2 * batch) if size < min(most, natural))]
    return sorted({max(1, min(most, _rounded(size))) for size in sizes})


def _rounded(count: float) -> int:
    """To two significant binary digits, so that numbers look chosen."""
    step = max(1, 2 ** (int(log2(max(count, 1))) - 2))
    return round(count / step) * step


def ours(name: str, **options: Any) -> Candidate:
    """The yaml's own options, but for these."""
    strategy = options.get("rollout_strategy", "partial")
    return Candidate(system=recipe(name, **options), strategy=strategy, stop_rule="first_completed", concurrency=None)


def measure(setting: Setting, kind: str, candidate: Candidate, **more: Any) -> dict[str, Any]:
    """A row; without figures where the recipe itself would refuse the options or give up.

    Args:
        more: of the planner's inputs.
    """
    row = {"setting": str(setting), "kind": kind, "system": candidate.system.name, "strategy": candidate.strategy}
    try:
        mean, natural_len_tok = simulate(setting.scenario(**more), candidate, steps=None, warmup=None)
    except ConfigError as error:
        return row | {"refused": str(error)}
    return row | {
        "step_s": round(mean.step_s, 2),
        "rollout_s": round(mean.rollout_s, 2),
        "log_prob_s": round(mean.log_prob_s, 2),
        "train_s": round(mean.train_s, 2),
        "trained_tok": round(mean.trained_tok),
        "withheld_tok": round(mean.withheld_tok),
        "off_policy": round(mean.off_policy_ratio, 4),
        "staleness_mean": round(mean.staleness_mean, 3),
        "staleness_max": mean.staleness_max,
        "length_bias": round(mean.trained_len_tok / natural_len_tok, 4),
        "waste": round(mean.waste_ratio, 4),
        "idle": round(mean.idle_ratio, 4),
        "prefill": round(mean.prefill_ratio, 4),
        "inflight_max": mean.inflight_max,
        "preemptions": round(mean.preemptions, 1),
        "recomputed_tok": round(mean.recomputed_tok),
        "reprefilled_tok": round(mean.reprefilled_tok),
        "refused": "",
    }


def run(
    folder: Path, settings: Sequence[Setting], *, systems: Sequence[str], jobs: int, say: Callable[[str], None]
) -> None:
    """Measure what the file does not have yet.

    Args:
        systems: how the names begin of those that are measured.
    """
    file = RunsFile(folder / "systems.csv")

    def is_missing(setting: Setting, system: str) -> bool:
        return system.startswith(tuple(systems)) and not file.has(setting=str(setting), system=system)

    rows = [
        (setting, kind, candidate)
        for setting in settings
        for kind, candidate in candidates(setting)
        if is_missing(setting, candidate.system.name)
    ]
    _measure_all(file, rows, jobs=jobs, say=say, measure_one=_measure_row)
    equal = [
        (setting, _share(file, setting))
        for setting in settings
        if is_missing(setting, EQUAL_SHARE) and file.has(setting=str(setting), system=COLOCATE)
    ]
    _measure_all(file, equal, jobs=jobs, say=say, measure_one=_measure_equal_share)


def equal_share(
    measure_at: Callable[[float | None], dict[str, Any]], *, share: float, caps: Sequence[float] = CAPS
) -> dict[str, Any]:
    """The row with the loosest cap that keeps the off-policy share at most at `share`; without a cap if that does.

    Args:
        measure_at: the row of the defaults with a cap, or None.
        share: of another system's tokens that are of older versions [0-1].
        caps: that are tried, ascending.
    """
    best = measure_at(None)
    if best["off_policy"] <= share:
        return best
    tightest, loosest = 0, len(caps) - 1
    while tightest <= loosest:
        middle = (tightest + loosest) // 2
        row = measure_at(caps[middle])
        if row["off_policy"] <= share:
            best, tightest = row, middle + 1
        else:
            loosest = middle - 1
    if best["off_policy"] > share:
        return {**best, "step_s": "", "refused": f"no cap keeps the off-policy share at {share}"}
    return best


def _measure_equal_share(row: tuple[Setting, float]) -> dict[str, Any]:
    setting, share = row

    def measure_at(cap: float | None) -> dict[str, Any]:
        return measure(setting, "default", ours(EQUAL_SHARE, max_partial_share=cap)) | {
            "cap": "" if cap is None else cap
        }

    return equal_share(measure_at, share=share)


def _measure_all(
    file: RunsFile,
    rows: Sequence[tuple[Any, ...]],
    *,
    jobs: int,
    say: Callable[[str], None],
    measure_one: Callable[[Any], dict[str, Any]],
) -> None:
    """On several processes, which end when this one is interrupted; what has been measured then is in the file."""
    with Pool(jobs) as pool:
        for row in pool.imap_unordered(measure_one, rows):
            file.add(row)
            say(f"{row['setting']}: {row['system']} {row.get('step_s', row['refused'])} s")


def _measure_row(row: tuple[Setting, str, Candidate]) -> dict[str, Any]:
    return measure(*row)


def _share(file: RunsFile, setting: Setting) -> float:
    """Off-policy share of verl's colocate_async."""
    return float(file.row(setting=str(setting), system=COLOCATE)["off_policy"])
