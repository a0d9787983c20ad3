"""What `runs.csv` of the side-by-side benchmark comes to: data frames for tables and the figure.

Seconds of a run are means over its steps: some systems train on two steps' groups after every second rollout, and a
median would see one kind of step only. Seconds of a system are medians over its runs.

Machines drift: a ratio counts where the bounds around its two runs, tokens per second of full engines, differ by no
more than `MOST_DRIFT`. Earlier runs have one bound only; they count, and a column says how many of them there are.
"""

from pathlib import Path

import pandas as pd

from benchmarks.support import learning_curve
from benchmarks.support.tables import spread

FOLDER = Path(__file__).parents[2] / "assets" / "side_by_side"
CELL = ["tail", "engines"]
BOUNDS = ["bound_before", "bound_after"]
MOST_DRIFT = 0.1  # of the largest of the bounds around two runs
SYNC = "verl sync"
SYNC_SHORT_POLL = "verl sync, 0.05 s poll"
SHORT_POLL = "verl colocate_async, 0.05 s poll"
NO_PASS = "verl colocate_async, 0.05 s poll, no pass"  # one update a step without log-probs before it, as here
DRAFTS = "verl colocate_async, 0.05 s poll, drafts"
SEPARATE = "verl separate_async, 0.05 s poll"  # the base of this recipe's rows with engines on GPUs of their own
BASES = (SYNC, SYNC_SHORT_POLL, "verl colocate_async", SHORT_POLL, NO_PASS, DRAFTS, SEPARATE)
HEADLINE = (SYNC, SYNC_SHORT_POLL, SHORT_POLL, "partial")
HEADLINE_TAIL = 8  # on one engine


def read_runs(folder: Path = FOLDER, file: str = "runs.csv") -> pd.DataFrame:
    """A row a run, with what is derived from its own figures and its bounds. verl's systems come first."""
    runs = pd.read_csv(folder / file)
    runs["bound_tok_per_s"] = runs[BOUNDS].mean(axis="columns")
    runs["of_bound"] = share_of_bound(runs)
    runs["accuracy_after"] = runs["validations"].map(lambda text: learning_curve.read(text)[-1][1])
    midways = runs[runs["system"] == SYNC].groupby(CELL)["validations"].agg(learning_curve.midway).rename("midway")
    runs = runs.join(midways, on=CELL)
    pairs = zip(runs["midway"], runs["validations"], strict=True)
    runs["midway_s"] = [learning_curve.cost_to(*pair) for pair in pairs]
    runs["system"] = pd.Categorical(runs["system"], sorted(runs["system"].unique(), key=order_of), ordered=True)
    return runs.sort_values([*CELL, "system", "repetition"], ignore_index=True)


def read_earlier(folder: Path = FOLDER) -> pd.DataFrame:
    """Runs before the recipe sized its concurrency by itself: on machines of their own, with 96 requests in flight."""
    return read_runs(folder, "earlier.csv")


def order_of(system: str) -> tuple[bool, str]:
    """Its place: verl's first, its modes in the order sync, colocate_async, separate_async."""
    return not system.startswith("verl"), system.replace("colocate_async", "y").replace("separate_async", "z")


def share_of_bound(runs: pd.DataFrame) -> pd.Series:
    """A step's seconds if its rollout ran on full engines, over its seconds.

    The step keeps its time outside the rollout and generates the same trained and filtered tokens; discarded ones are
    no work done. Missing for a system that does not count the tokens it generates.
    """
    trained_tok = runs["trained_tok_per_s"] * runs["step_s_mean"]
    useful_tok = runs["generated_tok"] - trained_tok * runs["waste"] / (1 - runs["waste"])
    outside_s = runs["step_s_mean"] - runs["rollout_s_mean"]
    return (outside_s + useful_tok / runs["bound_tok_per_s"]) / runs["step_s_mean"]


def ratios(runs: pd.DataFrame, most_drift: float = MOST_DRIFT) -> pd.DataFrame:
    """Step time and trained tokens/s of every system over those of each base, in the repetitions that both have.

    `ratio` and `rate` are of the medians, `step_s` over `base_s` and their rates: of the repetitions that both have,
    and of no other run. The others are of the ratios within one repetition: machines differ between repetitions. Pairs
    whose bounds differ by more than `most_drift` (1: none) are left out, and counted in `drifted`; `unjudged` ones have
    one bound.
    """
    base = runs[runs["system"].isin(BASES)].rename(columns={"system": "base"})
    pairs = runs.merge(base, on=[*CELL, "repetition"], suffixes=("", "_base"))
    pairs = pairs[pairs["system"].astype(str) != pairs["base"].astype(str)]
    bounds = pairs[BOUNDS + [f"{name}_base" for name in BOUNDS]]
    pairs["unjudged"] = bounds.isna().any(axis="columns")
    pairs["drifted"] = ~pairs["unjudged"] & (bounds.min(axis="columns") < (1 - most_drift) * bounds.max(axis="columns"))
    by = [*CELL, "system", "base"]
    drifted = pairs.groupby(by, observed=True)["drifted"].sum()
    pairs = pairs[~pairs["drifted"]]
    pairs["within"] = pairs["step_s_mean"] / pairs["step_s_mean_base"]
    pairs["rate_within"] = pairs["trained_tok_per_s"] / pairs["trained_tok_per_s_base"]
    groups = pairs.groupby(by, observed=True)
    medians = groups[["step_s_mean", "step_s_mean_base", "trained_tok_per_s", "trained_tok_per_s_base"]].median()
    table = pd.DataFrame(
        {
            "repetitions": groups.size(),
            "unjudged": groups["unjudged"].sum(),
            "drifted": drifted,
            "step_s": medians["step_s_mean"],
            "base_s": medians["step_s_mean_base"],
            "ratio": medians["step_s_mean"] / medians["step_s_mean_base"],
            "lowest": groups["within"].min(),
            "median": groups["within"].median(),
            "highest": groups["within"].max(),
            "rate": medians["trained_tok_per_s"] / medians["trained_tok_per_s_base"],
            "rate_lowest": groups["rate_within"].min(),
            "rate_highest": groups["rate_within"].max(),
        }
    )
    counts = ["repetitions", "unjudged", "drifted"]
    return table.assign(**table[counts].fillna(0).astype(int)).reset_index()


def seconds_table(runs: pd.DataFrame) -> pd.DataFrame:
    groups = runs.groupby([*CELL, "system"], observed=True)
    count = groups.size().rename("Runs")
    rollout_s = groups["rollout_s_mean"].median().rename("Rollout [s]")
    rate = groups["trained_tok_per_s"].median().rename("Trained tokens/s")
    return _named(pd.concat([count, spread(groups, "step_s_mean", "Step [s]"), rollout_s, rate], axis="columns"))


def ratios_table(runs: pd.DataFrame, most_drift: float = MOST_DRIFT) -> pd.DataFrame:
    return _named(ratios(runs, most_drift)).rename(
        columns={
            "base": "Over",
            "repetitions": "Repetitions",
            "unjudged": "Of them with one bound",
            "drifted": "Left out: the machine drifted",
            "step_s": "Step [s]",
            "base_s": "The other's step [s]",
            "ratio": "Ratio",
            "lowest": "Lowest of one repetition",
            "median": "Median within one",
            "highest": "Highest of one",
            "rate": "Trained tokens/s, of medians",
            "rate_lowest": "Its lowest within one",
            "rate_highest": "Its highest within one",
        }
    )


COSTS = {
    "step_s": "Step, median [s]",
    "step_s_p10": "Steps, p10 [s]",
    "step_s_p90": "Steps, p90 [s]",
    "outside_s": "Outside the rollout [s]",
    "old_log_prob_s": "old_log_prob [s]",
    "update_actor_s": "update_actor [s]",
    "adv_s": "adv [s]",
    "reprefilled_tok": "Prefilled again [tokens/step]",
    "cpu_ms_per_trajectory": "CPU per trained trajectory [ms]",
}


def costs_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Medians over runs of how evenly steps come, of what the trainer's side takes, and of the whole run's CPU."""
    runs = runs.assign(outside_s=runs["step_s_mean"] - runs["rollout_s_mean"])
    medians = runs.groupby([*CELL, "system"], observed=True)[list(COSTS)].median()
    return _named(medians.rename(columns=COSTS))


MEASURES = {
    "of_bound": "Of the bound",
    "engine_idle": "Engine idle",
    "waste": "Waste",
    "off_policy": "Off-policy",
    "staleness": "Staleness",
    "accuracy_after": "Accuracy after",
    "midway_s": "Seconds to midway",
}


def measures_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Medians over runs; seconds to midway are missing where not all runs reached it."""
    groups = runs.groupby([*CELL, "system"], observed=True)
    medians = groups[list(MEASURES)].median()
    medians["midway_s"] = medians["midway_s"].where(groups["midway_s"].count() == groups.size())
    return _named(medians.rename(columns=MEASURES))


def headline_table(runs: pd.DataFrame) -> pd.DataFrame:
    """The default strategy beside verl's modes on one engine: medians over the repetitions that all of them have.

    A system without runs is left out.
    """
    runs = runs[(runs["engines"] == 1) & (runs["tail"] == HEADLINE_TAIL)].astype({"system": str})
    shown = [name for name in HEADLINE if name in set(runs["system"])]
    repetitions = runs[runs["system"].isin(shown)].groupby("repetition")["system"].nunique()
    runs = runs[runs["repetition"].isin(repetitions.index[repetitions == len(shown)])]
    groups = runs.groupby("system")
    table = pd.DataFrame({"step_s": groups["step_s_mean"].median(), "runs": groups.size()}).reindex(shown)
    return table.assign(ours_over=table.loc["partial", "step_s"] / table["step_s"])


def headline(runs: pd.DataFrame, earlier: pd.DataFrame) -> str:
    """The measured result as one line, with its caveat."""
    table = headline_table(runs)
    ours = table.loc["partial"]
    others = ". ".join(
        f"{name} takes {row.step_s:.2f} s; `partial` takes {row.ours_over:.3f} of that"
        for name, row in table.drop("partial").iterrows()
    )
    lines = [
        f"*Measured* on two CPU cores with a tiny model (p99/median of lengths {HEADLINE_TAIL}, medians of "
        f"{ours.runs:.0f} runs): a step of `partial` takes {ours.step_s:.2f} s.",
        f"{others}.",
    ]
    if SYNC_SHORT_POLL not in table.index:
        pause = ratios(earlier).query(
            "tail == @HEADLINE_TAIL and engines == 1 and system == @SYNC_SHORT_POLL and base == @SYNC"
        )
        [one] = pause.itertuples()
        lines += [
            f"verl polls its replay buffer every 2 s; polled every 0.05 s, sync took {one.ratio:.3f} of its step "
            f"({one.repetitions} runs of earlier code).",
        ]
    lines += ["On so small a model most of a step is Python: this says little about GPUs."]
    return "\n".join(lines) + "\n"


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.reset_index() if frame.index.names[0] is not None else frame
    return frame.rename(columns={"tail": "Tail", "engines": "Engines", "system": "System"})
