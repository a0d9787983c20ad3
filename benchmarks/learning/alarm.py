"""Which rule on what a run measures anyway tells at half time that it will end below its on-policy run.

A rule is one limit of one figure: that with the largest share of bad runs found less the share of false alarms. To
judge it, it is chosen anew for each seed from the runs of all other seeds.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .summary import LOST, ROW

MEASURED = ("k3_kl", "k3_of_1", "ess_ratio", "ratio_max", "entropy", "clipped", "gradient", "reward")
HEALTHY = 0.05  # accuracy below on-policy's at most
LABELS = {f"lost ({LOST:g} below on-policy)": LOST, f"worse (more than {HEALTHY:g} below)": HEALTHY}
_QUANTILES = np.linspace(0.04, 0.96, 24)
_FEWEST = 5  # bad runs
_FOUND, _MOST_FALSE = 0.8, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A rule, and what it tells of runs of seeds that it was not chosen by."""

    rule: str
    found: int
    bad: int
    false: int
    healthy: int

    @property
    def tells_something(self) -> bool:
        return wilson(self.found, self.bad)[0] > wilson(self.false, self.healthy)[1]


def figures(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """A row a run, in the order of `runs`: means of the run's second quarter, and those over the first quarter's."""
    early = curves.merge(runs[[*ROW, "steps"]], on=ROW)
    early = early[early["step"] <= early["steps"] / 2]
    is_second = early["step"] > early["steps"] / 4
    second, first = (early[part].groupby(ROW)[[*MEASURED]].mean() for part in (is_second, ~is_second))
    table = second.join((second / first).add_suffix(", growth"))
    return table.reindex(pd.MultiIndex.from_frame(runs[ROW])).reset_index(drop=True)


def find(runs: pd.DataFrame, curves: pd.DataFrame, *, below: float) -> Alarm | None:
    """The best rule for runs that end so far below on-policy; None if they are too few to choose by."""
    runs = runs[(runs["gap"] <= -below) | (runs["gap"] > -HEALTHY)].reset_index(drop=True)
    is_bad, seeds = (runs["gap"] <= -below).to_numpy(), runs["seed"].to_numpy()
    if is_bad.sum() < _FEWEST or (~is_bad).sum() < _FEWEST or len(set(seeds[is_bad])) < 2:
        return None
    names, fires = _limits(figures(runs, curves))
    told = np.zeros(len(runs), dtype=bool)
    for seed in set(seeds):
        own = seeds == seed
        told[own] = fires[_best(fires[:, ~own], is_bad[~own])][own]
    found, false = int((told & is_bad).sum()), int((told & ~is_bad).sum())
    rule = names[_best(fires, is_bad)]
    return Alarm(rule=rule, found=found, bad=is_bad.sum(), false=false, healthy=(~is_bad).sum())


def _limits(table: pd.DataFrame) -> tuple[list[str], NDArray[np.bool_]]:
    """Every limit that is tried, and which runs are beyond it, [limits, runs]."""
    names, fires = [], []
    for figure in table:
        values = table[figure].to_numpy(dtype=float)
        for limit in np.unique(np.nanquantile(values, _QUANTILES)) if np.isfinite(values).any() else ():
            names += [f"`{figure}` above {limit:.4g}", f"`{figure}` below {limit:.4g}"]
            fires += [values > limit, values < limit]
    return names, np.array(fires)


def _best(fires: NDArray[np.bool_], is_bad: NDArray[np.bool_]) -> int:
    """The limit that tells most."""
    worth = is_bad / max(1, is_bad.sum()) - ~is_bad / max(1, (~is_bad).sum())
    return int((fires @ worth).argmax())


def wilson(count: int, of: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    z2, share = 1.96**2, count / of
    middle, half = share + z2 / 2 / of, math.sqrt(z2 * (share * (1 - share) + z2 / 4 / of) / of)
    return (middle - half) / (1 + z2 / of), (middle + half) / (1 + z2 / of)


def in_words(runs: pd.DataFrame, curves: pd.DataFrame) -> str:
    """A line for each kind of bad run."""
    lines = []
    for label, below in LABELS.items():
        bad, healthy = (runs["gap"] <= -below).sum(), (runs["gap"] > -HEALTHY).sum()
        head = f"- **{label[0].upper()}{label[1:]}**: {bad} runs, {healthy} healthy ones."
        alarm = find(runs, curves, below=below)
        if alarm is None:
            lines.append(f"{head} Too few to choose a rule by.")
            continue
        found, false = _share(alarm.found, alarm.bad), _share(alarm.false, alarm.healthy)
        verdict = "" if alarm.tells_something else " It is not better than chance."
        lines.append(f"{head} The best rule, {alarm.rule}, finds {found}, with false alarms for {false}.{verdict}")
    return "\n".join(lines) + "\n"


def target(runs: pd.DataFrame, curves: pd.DataFrame) -> dict[str, object]:
    """As a row beside those of `summary.targets`."""
    row = {
        "Target": f"Alarm at half time: lost runs found, with at most {100 * _MOST_FALSE:g} % false",
        "Limit": _FOUND,
    }
    alarm = find(runs, curves, below=LOST)
    if alarm is None:
        return row | {"Measured, worst": "", "Met": "too few lost runs"}
    found, false = alarm.found / alarm.bad, alarm.false / alarm.healthy
    met = "yes" if found >= _FOUND and false <= _MOST_FALSE else "no"
    return row | {"Measured, worst": f"{found:.2f}, false {false:.3f}", "Met": met}


def _share(count: int, of: int) -> str:
    low, high = wilson(count, of)
    return f"{100 * count / of:.0f} % ({100 * low:.0f} to {100 * high:.0f})"
