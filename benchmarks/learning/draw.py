"""The figure of a folder's runs, or of the project's own: python -m benchmarks.learning.draw [FOLDER]

Writes `law.csv` and `law.png` there, and prints the tables. `python -m docs.generate` puts those of the project's own
runs on its pages.
"""

import sys
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.support.tables import markdown

from . import alarm, summary

# Nats a token. Tinker's guide (tinker-docs.thinkingmachines.ai/rl/rl-hyperparams) calls training stable below that KL
# between sampler and trainer, old tokens and numerical error together. M2PO (arXiv:2510.01161) masks tokens until the
# mean of (log r)^2, about twice k3, is below a limit: 0.04 in AReaL's examples/math/gsm8k_m2po.yaml.
PUBLISHED = {"stable below, Tinker's guide": (0.01, ":"), "limit of M2PO in AReaL": (0.02, "--")}


def draw(lines: pd.DataFrame, path: Path) -> None:
    tasks = lines["task"].unique()
    figure = Figure(figsize=(4.2 * len(tasks) + 2, 3.6), layout="constrained")
    axes = figure.subplots(1, len(tasks), sharex=True, sharey=True, squeeze=False)[0]
    colours = {name: f"C{place}" for place, name in enumerate(sorted(lines["correction"].unique()))}
    for axis, task in zip(axes, tasks, strict=True):
        own = lines[lines["task"] == task]
        axis.axhline(0, color="0.7", linewidth=0.8)
        for name, some in own.groupby("correction"):
            bars = some[["gap", "low", "high"]]
            errors = [(bars["gap"] - bars["low"]).fillna(0), (bars["high"] - bars["gap"]).fillna(0)]
            style = {"color": colours[name], "label": name, "capsize": 2, "markersize": 4, "linewidth": 1}
            axis.errorbar(some["nats"], some["gap"], yerr=errors, fmt="o-", **style)
        defaults = own[(own[["strategy", "staleness", "correction"]] == [*summary.DEFAULT]).all(axis=1)]
        defaults = defaults[(defaults["rate_factor"] == 1) & (defaults["updates"] == 1)]
        marked = {"markersize": 12, "fillstyle": "none", "color": "black", "label": "the defaults"}
        axis.plot(defaults["nats"], defaults["gap"], "o", **marked)
        for name, (nats, dashes) in PUBLISHED.items():
            axis.axvline(nats, color="0.5", linestyle=dashes, label=name)
        axis.set_xscale("log")
        axis.set_title(task)
        axis.set_xlabel("staleness, k3(mu, pi_prox) [nats a token]")
    axes[0].set_ylabel("accuracy less on-policy's")
    named = {label: drawn for axis in axes for drawn, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else summary.FOLDER
    runs, curves = summary.read(folder)
    found = summary.compared(runs, curves)
    lines = summary.law(found)
    if lines.empty:
        sys.exit(f"{folder}: no run has an on-policy run of its task, learning rate, updates and seed beside it")
    lines.to_csv(folder / "law.csv", index=False, float_format="%.5g")
    draw(lines, folder / "law.png")
    tables = (summary.on_policy(runs), summary.by_setting(lines), summary.others(found), summary.targets(lines))
    print(*map(markdown, tables), summary.recommendation(lines), alarm.in_words(found, curves), sep="\n")
