"""The picture of a step: `engines.csv` and `steps.csv` of the folder in assets/ as bars over time."""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from benchmarks.step_picture.run import SHOWN_S

FOLDER = Path(__file__).parents[2] / "assets" / "step_picture"
NEW, CONTINUED, TRAINING = "tab:blue", "tab:orange", "0.75"


def draw(samples: pd.DataFrame, steps: pd.DataFrame, path: Path) -> None:
    """One panel a system, one bar an engine: its height is how full the engine is."""
    names = list(dict.fromkeys(samples["system"]))
    servers = sorted(samples["server"].unique())
    full = samples["running"].quantile(0.99)
    figure, axes = plt.subplots(len(names), 1, figsize=(9, 5.6), layout="constrained", sharex=True)
    for axis, name in zip(axes, names, strict=True):
        own, own_steps = samples[samples["system"] == name], steps[steps["system"] == name]
        for (_, server), bar in own.groupby(["step", "server"]):
            base = len(servers) - 1 - servers.index(server)
            height = 0.85 * (bar["running"] / full).clip(upper=1)
            continued, top = base + height * bar["continued_share"], base + height
            axis.fill_between(bar["time_s"], base, continued, color=CONTINUED, step="post", linewidth=0)
            axis.fill_between(bar["time_s"], continued, top, color=NEW, step="post", linewidth=0)
        for step in own_steps.itertuples():
            axis.axvspan(step.stop_s, step.end_s, color=TRAINING, linewidth=0)
            axis.axvline(step.stop_s, color="black", linewidth=1.2)
        axis.set(yticks=[], xlim=(0, SHOWN_S), ylim=(0, len(servers)), ylabel=f"{len(servers)} of the engines")
        mean_s = own_steps["end_s"].diff().fillna(own_steps["end_s"]).mean()
        axis.set_title(f"{name}: {mean_s:.0f} s a step", loc="left", fontsize=11)
    axes[-1].set_xlabel("seconds")
    patches = [
        plt.Rectangle((0, 0), 1, 1, color=NEW, label="responses that began in this step"),
        plt.Rectangle((0, 0), 1, 1, color=CONTINUED, label="interrupted responses, continued"),
        plt.Rectangle((0, 0), 1, 1, color=TRAINING, label="training"),
        plt.Line2D([], [], color="black", label="B groups are valid"),
    ]
    figure.legend(handles=patches, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(path, dpi=110)
