"""The figure of a folder's runs, or of the project's own: python -m benchmarks.learning.draw [FOLDER]

Writes `law.csv`, `law.png` and `bounds.png` there, and prints the tables. `python -m docs.generate` puts those of the
project's own runs on its pages.
"""

import sys
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.support.tables import markdown
from recipe.async_dapo_lab.report.health import UNSTABLE_NATS

from . import alarm, summary
from .rows import STALENESS

# Nats a token. Tinker's guide (tinker-docs.thinkingmachines.ai/rl/rl-hyperparams) calls training stable below that KL
# between sampler and trainer, old tokens and numerical error together. M2PO (arXiv:2510.01161) masks tokens until the
# mean of (log r)^2, about twice k3, is below a limit: 0.04 in AReaL's examples/math/gsm8k_m2po.yaml.
PUBLISHED = {"stable below, Tinker's guide": (UNSTABLE_NATS, ":"), "limit of M2PO in AReaL": (0.02, "--")}
_ACROSS = 3  # panels
_LINEAR = 0.05  # of the axis of gaps; beyond it is logarithmic


def draw(lines: pd.DataFrame, path: Path) -> None:
    """A panel a task, the legend in the last one. A setting of fewer than FEW seeds is hollow and has no interval."""
    tasks = lines["task"].unique()
    depth = len(tasks) // _ACROSS + 1
    figure = Figure(figsize=(4.2 * _ACROSS, 3.4 * depth), layout="constrained")
    panels = figure.subplots(depth, _ACROSS, sharex=True, sharey=True, squeeze=False)
    axes, free = panels.flat[: len(tasks)], panels.flat[len(tasks) :]
    names = sorted(lines["correction"].unique())
    for axis, task in zip(axes, tasks, strict=True):
        own = lines[lines["task"] == task]
        usual = (own["rate_factor"] == 1) & (own["updates"] == 1)
        axis.axhline(0, color="0.7", linewidth=0.8)
        for _, line in own[usual & (own["staleness"] == "0") & (own["seeds"] >= summary.FEW)].iterrows():
            half = (line["high"] - line["gap"]) * (line["seeds"] + 1) ** 0.5  # of a single further run
            axis.axhspan(-half, half, color="0.9", label="another on-policy run, 95 %")
        for name, some in own[own["staleness"] != "0"].groupby("correction"):
            style = {"color": f"C{names.index(name) % 10}", "marker": "osv"[names.index(name) // 10], "markersize": 4}
            axis.plot(some["nats"], some["gap"], fillstyle="none", linestyle="none", label=name, **style)
            known = some[some["seeds"] >= summary.FEW]
            half = known["high"] - known["gap"]
            axis.errorbar(known["nats"], known["gap"], yerr=half, linestyle="none", capsize=2, **style)
        defaults = own[usual & (own[["strategy", "staleness", "correction"]] == [*summary.DEFAULT]).all(axis=1)]
        marked = {"markersize": 12, "fillstyle": "none", "color": "black", "label": "the defaults"}
        axis.plot(defaults["nats"], defaults["gap"], "o", **marked)
        for name, (nats, dashes) in PUBLISHED.items():
            axis.axvline(nats, color="0.5", linestyle=dashes, label=name)
        axis.set_xscale("log")
        axis.set_yscale("symlog", linthresh=_LINEAR, linscale=0.6)
        ticks = [0.05, 0, -0.05, -0.1, -0.3, -1]
        axis.set_yticks(ticks, map(str, ticks))
        axis.set_title(task)
    figure.supxlabel(
        "how far old tokens are from the policy that trains on them: k3(mu, pi_prox) [nats a token]", fontsize="medium"
    )
    figure.supylabel("final accuracy, stale minus on-policy", fontsize="medium")
    for axis in free:
        axis.axis("off")
    named = {label: drawn for axis in axes for drawn, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    free[-1].legend(named.values(), named.keys(), loc="center", fontsize=8)
    figure.savefig(path, dpi=120)


def draw_bounds(lines: pd.DataFrame, path: Path) -> None:
    """README's figure: what the default correction costs by `max_staleness`, at the task's own rate."""
    strategy, _, correction = summary.DEFAULT
    is_usual = (lines["rate_factor"] == 1) & (lines["updates"] == 1) & (lines["strategy"] == strategy)
    own = lines[is_usual & (lines["correction"] == correction) & lines["task"].isin(summary.JUDGED)]
    bounds = [bound for bound in STALENESS if bound in set(own["staleness"])]
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axis = figure.subplots()
    axis.axhline(0, color="0.7", linewidth=0.8)
    for place, (task, some) in enumerate(own.groupby("task")):
        at = [bounds.index(bound) + 0.15 * (place - 1) for bound in some["staleness"]]
        style: dict[str, Any] = {"color": f"C{place}", "marker": "osv"[place], "markersize": 6, "linestyle": "none"}
        axis.plot(at, some["gap"], fillstyle="none", label=task, **style)
        known = (some["seeds"] >= summary.FEW).to_numpy()
        half = (some["high"] - some["gap"])[known]
        axis.errorbar(
            [x for x, is_known in zip(at, known, strict=True) if is_known],
            some["gap"][known],
            yerr=half,
            capsize=3,
            **style,
        )
    axis.set_xticks(range(len(bounds)), bounds)
    axis.set(xlabel="async_dapo.max_staleness [policy versions]", ylabel="final accuracy,\nstale minus on-policy")
    axis.legend(fontsize=9)
    figure.savefig(path, dpi=120)


def tables(folder: Path = summary.FOLDER) -> dict[str, str]:
    """What a folder's runs come to, by the names that the pages have for it."""
    runs, curves = summary.read(folder)
    pairs = summary.compared(runs, curves)
    lines, over = summary.law(pairs), summary.law(summary.over_default(pairs))
    targets = pd.concat([summary.targets(lines), pd.DataFrame([alarm.target(pairs)])])
    stack = folder / "stack.csv"
    beside = (
        summary.beside_stack(runs, curves, pd.read_csv(stack, dtype={"staleness": str})) if stack.exists() else None
    )
    return {
        "recommendation": summary.recommendation(lines),
        "on-policy": markdown(summary.on_policy(runs)),
        "settings": markdown(summary.by_setting(lines)),
        "screening": markdown(summary.screening(over)),
        "corrections": markdown(summary.decided(lines, over)),
        "alarm": markdown(alarm.table(pairs)),
        "learning": markdown(targets),
        "real stack": "" if beside is None else markdown(beside),
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else summary.FOLDER
    lines = summary.law(summary.compared(*summary.read(folder)))
    if lines.empty:
        sys.exit(f"{folder}: no run has an on-policy run of its task, learning rate, updates and seed beside it")
    lines.to_csv(folder / "law.csv", index=False, float_format="%.5g")
    draw(lines, folder / "law.png")
    draw_bounds(lines, folder / "bounds.png")
    print(*tables(folder).values(), sep="\n")
