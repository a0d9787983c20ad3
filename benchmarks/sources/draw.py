"""The table and the figure of `shares.csv`."""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from .mix import AS_DRAWN, FILE, MIXES, THREE

FOLDER = Path(__file__).parents[2] / "assets" / "sources"
COLOURS = ("tab:blue", "tab:orange", "tab:green")
SYSTEM = ["mix", "strategy", "stop_rule", "sources"]
NAMES = {"null": "as drawn", "balanced": "balanced", "equal": "equal shares, named"}


def read(folder: Path = FOLDER) -> pd.DataFrame:
    """Rows that were simulated, with the trained share of each source over its drawn share."""
    rows = pd.read_csv(folder / FILE, keep_default_na=False)
    rows = rows[rows["refused"] == ""]
    numbers = [column for column in rows if column not in (*SYSTEM, "source", "refused", "commit")]
    rows[numbers] = rows[numbers].astype(float)
    windows = {f"ratio_{name}": rows[f"trained_{name}"] / rows[f"drawn_{name}"] for name in ("first", "steady")}
    return rows.assign(**windows)


def as_drawn(rows: pd.DataFrame | None = None) -> pd.DataFrame:
    """Trained over drawn share of each source, in steps 21 to 200, and in the first twenty."""
    rows = read() if rows is None else rows
    rows = rows[(rows["sources"] == AS_DRAWN) & (rows["mix"] == THREE)]
    text = rows["ratio_steady"].map("{:.2f}".format) + " (" + rows["ratio_first"].map("{:.2f}".format) + ")"
    table = rows.assign(text=text).pivot_table(
        index=["strategy", "stop_rule"], columns="source", values="text", aggfunc="first"
    )[[one.name for one in MIXES[THREE]]]
    return table.reset_index().rename(columns={"strategy": "Strategy", "stop_rule": "Stop rule"})


def shared(rows: pd.DataFrame | None = None) -> pd.DataFrame:
    """What shares come to, beside the same system without."""
    rows = read() if rows is None else rows
    with_shares = rows[rows["sources"] != AS_DRAWN][SYSTEM[:3]].drop_duplicates()
    rows = rows.merge(with_shares, on=SYSTEM[:3])
    lines = []
    for (mix, strategy, rule, sources), own in rows.groupby(SYSTEM, sort=False):
        first = own.iloc[0]
        trained = ", ".join(f"{100 * share:.0f}" for share in own["trained_steady"])
        lines.append(
            {
                "Mix": mix,
                "System": f"{strategy}, {rule}",
                "async_dapo.sources": NAMES[sources],
                "Trained [%]": trained,
                "Farthest of 20 steps [%]": "" if sources == AS_DRAWN else f"{100 * own['farthest'].max():.1f}",
                "Step [s]": f"{first['step_s']:.0f}",
                "Million tokens a step": f"{first['generated_tok'] / 1e6:.2f}",
            }
        )
    return pd.DataFrame(lines)


def draw(folder: Path) -> None:
    """One panel a mix: trained over drawn share of each source; hollow in the first twenty steps."""
    rows = read(folder)
    rows = rows[rows["sources"] == AS_DRAWN]
    mixes = list(dict.fromkeys(rows["mix"]))
    sizes = [rows[rows["mix"] == mix][["strategy", "stop_rule"]].drop_duplicates().shape[0] for mix in mixes]
    figure, axes = plt.subplots(1, len(mixes), figsize=(11, 4.6), layout="constrained", sharey=True, width_ratios=sizes)
    for axis, mix in zip(axes, mixes, strict=True):
        own = rows[rows["mix"] == mix].sort_values(["strategy", "stop_rule"], kind="stable")
        systems = own["strategy"] + "\n" + own["stop_rule"]
        places = {name: place for place, name in enumerate(dict.fromkeys(systems))}
        for colour, one in zip(COLOURS, MIXES[mix], strict=False):
            points = own[own["source"] == one.name]
            x = (points["strategy"] + "\n" + points["stop_rule"]).map(places)
            axis.scatter(x, points["ratio_steady"], color=colour, label=one.name, zorder=3)
            axis.scatter(x, points["ratio_first"], facecolors="none", edgecolors=colour, zorder=2)
        axis.axhline(1, color="0.6", linewidth=1)
        axis.set_title(f"{mix}; filled: steps 21 to 200, hollow: the first twenty", fontsize=9)
        axis.set_ylim(0, None)
        axis.set_xticks(range(len(places)), list(places), rotation=90, fontsize=8)
    axes[0].set_ylabel("trained share / drawn share")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(folder / "shares.png", dpi=110)
