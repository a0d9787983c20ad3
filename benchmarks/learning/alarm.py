"""Which rule on what a run measures anyway tells at half time that it will be lost.

A rule is one limit of one figure: that with the largest share of lost runs found less the share of false alarms. To
judge it, it is chosen anew for each seed from the runs of all other seeds.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .summary import JOB, ROW

MEASURED = ("k3_kl", "k3_of_1", "ess_ratio", "ratio_max", "entropy", "clipped", "gradient", "reward")
HEALTHY = 0.05  # accuracy below on-policy's at most
_QUANTILES = np.linspace(0.04, 0.96, 24)
_FEWEST = 5  # lost runs
_FOUND, _MOST_FALSE = 0.8, 0.05

Share = tuple[int, int]  # so many of so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A rule, and what it tells of runs of seeds that it was not chosen by.

    Attributes:
        false: alarms, of healthy runs.
        false_near: the same of tasks and rates that lost a run.
    """

    rule: str
    found: Share
    false: Share
    false_near: Share

    @property
    def tells_something(self) -> bool:
        return wilson(self.found)[0] > wilson(self.false_near)[1]


def find(pairs: pd.DataFrame, curves: pd.DataFrame) -> Alarm | None:
    """The best rule; None if too few runs were lost to choose by."""
    judged = pairs[(pairs["staleness"] != "0") & (pairs["lost"] | (pairs["gap"] > -HEALTHY))].reset_index(drop=True)
    lost, seeds = judged["lost"].to_numpy(dtype=bool), judged["seed"].to_numpy()
    if lost.sum() < _FEWEST or len(set(seeds[lost])) < 2 or lost.all():
        return None
    names, fires = _limits(figures(judged, curves))
    told = np.zeros_like(lost)
    for seed in set(seeds):
        own = seeds == seed
        told[own] = fires[_best(fires[:, ~own], lost[~own])][own]
    near = judged.groupby(JOB)["lost"].transform("any").to_numpy(dtype=bool) & ~lost
    shares = (((told & runs).sum(), runs.sum()) for runs in (lost, ~lost, near))
    return Alarm(rule=names[_best(fires, lost)], **dict(zip(("found", "false", "false_near"), shares, strict=True)))


def figures(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """A row a run, in the order of `runs`: means of the run's second quarter, and those over the first quarter's."""
    early = curves.merge(runs[ROW], on=ROW)
    early = early[early["step"] <= early["steps"] / 2]
    is_second = early["step"] > early["steps"] / 4
    second, first = (early[part].groupby(ROW)[[*MEASURED]].mean() for part in (is_second, ~is_second))
    table = second.join((second / first).add_suffix(", growth"))
    return table.reindex(pd.MultiIndex.from_frame(runs[ROW])).reset_index(drop=True)


def _limits(table: pd.DataFrame) -> tuple[list[str], NDArray[np.bool_]]:
    """Every limit that is tried, and which runs are beyond it, [limits, runs]."""
    names, fires = [], []
    for figure in table:
        values = table[figure].to_numpy(dtype=float)
        for limit in np.unique(np.nanquantile(values, _QUANTILES)) if np.isfinite(values).any() else ():
            names += [f"`{figure}` above {limit:.4g}", f"`{figure}` below {limit:.4g}"]
            fires += [values > limit, values < limit]
    return names, np.array(fires)


def _best(fires: NDArray[np.bool_], lost: NDArray[np.bool_]) -> int:
    """The limit that tells most."""
    worth = lost / max(1, lost.sum()) - ~lost / max(1, (~lost).sum())
    return int((fires @ worth).argmax())


def wilson(share: Share) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927); all of it where nothing was counted."""
    count, of = share
    if not of:
        return 0.0, 1.0
    z2, part = 1.96**2, count / of
    middle, half = part + z2 / 2 / of, math.sqrt(z2 * (part * (1 - part) + z2 / 4 / of) / of)
    return (middle - half) / (1 + z2 / of), (middle + half) / (1 + z2 / of)


def in_words(pairs: pd.DataFrame, curves: pd.DataFrame) -> str:
    alarm = find(pairs, curves)
    if alarm is None:
        return f"Lost: {pairs['lost'].sum()} of {len(pairs)} runs, too few to choose a rule by.\n"
    verdict = "" if alarm.tells_something else " It is not better than chance."
    return (
        f"The best rule, {alarm.rule}, finds {_said(alarm.found)} of {alarm.found[1]} lost runs, with false alarms for "
        f"{_said(alarm.false)} of {alarm.false[1]} healthy ones, and {_said(alarm.false_near)} of the "
        f"{alarm.false_near[1]} with the task and rate of a lost one.{verdict}\n"
    )


def target(pairs: pd.DataFrame, curves: pd.DataFrame) -> dict[str, object]:
    """As a row beside those of `summary.targets`."""
    name = f"Alarm at half time: lost runs found, with at most {100 * _MOST_FALSE:g} % false"
    alarm = find(pairs, curves)
    if alarm is None:
        return {"Target": name, "Limit": _FOUND, "Measured, worst": "", "Met": "too few lost runs"}
    (found, of), (false, healthy) = alarm.found, alarm.false
    met = "yes" if found / of >= _FOUND and false / healthy <= _MOST_FALSE else "no"
    measured = f"{found / of:.2f}, false {false / healthy:.3f}"
    return {"Target": name, "Limit": _FOUND, "Measured, worst": measured, "Met": met}


def _said(share: Share) -> str:
    low, high = wilson(share)
    return f"{100 * share[0] / max(1, share[1]):.0f} % ({100 * low:.0f} to {100 * high:.0f})"
