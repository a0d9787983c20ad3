"""The table and the figure of `systems.csv`: python -m benchmarks.defaults draws them after it has measured.

Ratios are seconds of a step over those of another system, in the same setting; a mean over settings is geometric. Per
token in the loss, not per step: shorter answers, and tokens withheld as too stale, make a step easier. Rows that do not
say how many are withheld count none.
"""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.support.tables import markdown
from recipe.async_dapo.plan.bound import bound_of

from .run import CAPPED, COLOCATE, DEFAULT, STALE_KV
from .settings import SETTINGS

FOLDER = Path(__file__).parents[2] / "assets" / "defaults"
SYNC, SEPARATE = "verl sync", "verl separate_async, "
TITLES = {
    "setting": "Setting",
    "sync_s": "verl sync [s]",
    "colocate_s": "verl colocate_async [s]",
    "separate_s": "verl separate_async [s]",
    "split": "Of its servers train",
    "baseline": "Best baseline",
    "default_s": "Default [s]",
    "of_sync": "Of sync",
    "of_colocate": "Of colocate_async",
    "of_separate": "Of separate_async",
    "of_baseline": "Of best baseline",
    "of_tuned_same": "Of best tuned partial",
    "of_tuned": "Of best tuned of any strategy",
    "of_bound": "Bound of rollout",
    "bound_of_sync": "Bound, of sync",
    "bound_of_colocate": "Bound, of colocate_async",
    "off_policy": "Off-policy",
    "off_policy_colocate": "Off-policy, colocate_async",
    "capped_of_colocate": "Capped, of colocate_async",
    "off_policy_capped": "Off-policy, capped",
    "stale_kv_s": "Default, stale KV [s]",
}
RATIOS = [
    "of_sync",
    "of_colocate",
    "of_separate",
    "of_baseline",
    "of_tuned_same",
    "of_tuned",
    "of_bound",
    "bound_of_sync",
    "bound_of_colocate",
    "capped_of_colocate",
]


def summary(folder: Path) -> pd.DataFrame:
    """A row a setting: seconds per batch of natural length in the loss, and ratios of them.

    Settings that have not been run far enough have none.
    """
    rows = pd.read_csv(folder / "systems.csv")
    rows = rows[rows["step_s"].notna()]
    in_loss = 1 - rows["withheld_tok"].fillna(0) / rows["trained_tok"]
    rows["per_batch_s"] = rows["step_s"] / rows["length_bias"] / in_loss
    lines = []
    for setting in SETTINGS:
        own = rows[rows["setting"] == str(setting)].set_index("system")
        if not {DEFAULT, SYNC, COLOCATE} <= set(own.index):
            continue
        separate = own[own.index.str.startswith(SEPARATE)]["per_batch_s"]
        base, tuned = own[own["kind"] == "baseline"], own[own["kind"] == "tuned"]
        default, seconds = own.loc[DEFAULT], own["per_batch_s"]
        same = tuned[tuned["strategy"] == "partial"]
        bound = bound_of(setting.scenario())
        bound_s = bound.rollout_s + (default["step_s"] - default["rollout_s"]) / default["length_bias"]
        lines.append(
            {
                "setting": str(setting),
                "sync_s": seconds[SYNC],
                "colocate_s": seconds[COLOCATE],
                "separate_s": separate.min(),
                "split": "" if separate.empty else separate.idxmin().removeprefix(SEPARATE).removesuffix(" train"),
                "baseline": base["per_batch_s"].idxmin(),
                "baseline_s": base["per_batch_s"].min(),
                "default_s": seconds[DEFAULT],
                "of_sync": seconds[DEFAULT] / seconds[SYNC],
                "of_colocate": seconds[DEFAULT] / seconds[COLOCATE],
                "of_separate": seconds[DEFAULT] / separate.min(),
                "of_baseline": seconds[DEFAULT] / base["per_batch_s"].min(),
                "of_tuned_same": seconds[DEFAULT] / same["per_batch_s"].min(),
                "tuned": tuned["per_batch_s"].idxmin() if len(tuned) else "",
                "of_tuned": seconds[DEFAULT] / tuned["per_batch_s"].min(),
                "of_bound": bound.rollout_s / (default["rollout_s"] / default["length_bias"]),
                "bound_of_sync": bound_s / seconds[SYNC],
                "bound_of_colocate": bound_s / seconds[COLOCATE],
                "off_policy": default["off_policy"],
                "off_policy_colocate": own.loc[COLOCATE, "off_policy"],
                "capped_of_colocate": seconds.get(CAPPED, float("nan")) / seconds[COLOCATE],
                "off_policy_capped": own["off_policy"].get(CAPPED, float("nan")),
                "stale_kv_s": seconds.get(STALE_KV, float("nan")),
            }
        )
    return pd.DataFrame(lines)


def as_table(lines: pd.DataFrame) -> pd.DataFrame:
    """Titled, with the geometric means of ratios as the last row."""
    means = {"setting": "geometric mean"} | {column: geometric_mean(lines[column]) for column in RATIOS}
    return pd.concat([lines, pd.DataFrame([means])])[list(TITLES)].rename(columns=TITLES)


def results_table() -> pd.DataFrame:
    """Of the committed results."""
    return as_table(summary(FOLDER))


def geometric_mean(values: pd.Series) -> float:
    known = values.dropna()
    return float(known.prod() ** (1 / len(known))) if len(known) else float("nan")


def draw(folder: Path) -> str:
    """Write `summary.csv` and `defaults.png`. Returns the table, of settings with verl's modes and the default."""
    lines = summary(folder)
    if lines.empty:
        return "No setting has rows of verl sync, verl colocate_async and the default yet: no table, no figure."
    lines.round(4).to_csv(folder / "summary.csv", index=False)
    figure = Figure(figsize=(9, 0.45 * len(lines) + 1.5), layout="constrained")
    axis = figure.subplots()
    rows = range(len(lines))
    marks = {
        "verl sync": (lines["sync_s"], "#9c9c9c", "s"),
        "verl colocate_async": (lines["colocate_s"], "#efb118", "s"),
        "best baseline": (lines["baseline_s"], "#ff725c", "D"),
        "default": (lines["default_s"], "#4269d0", "o"),
        "default, stale KV": (lines["stale_kv_s"], "#6cc5b0", "o"),
    }
    for name, (seconds, colour, shape) in marks.items():
        axis.plot(seconds / lines["sync_s"], rows, shape, color=colour, label=name, markersize=6)
    axis.set_yticks(list(rows), lines["setting"])
    axis.invert_yaxis()
    axis.set_xlim(0, 1.05)
    axis.set_xlabel("seconds of a step over verl sync's")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(folder / "defaults.png", dpi=120)
    return markdown(as_table(lines))
