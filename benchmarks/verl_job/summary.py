"""What `runs.csv` comes to: published seconds beside simulated ones, and what the filter and drafts change."""

from pathlib import Path

import pandas as pd

from benchmarks.defaults import draw as defaults
from benchmarks.defaults.run import COLOCATE, DEFAULT, EQUAL_SHARE

from .run import AS_MEASURED, DRAFTED, DRAFTS, FILTERED, JOB, MODEL, PUBLISHED

FOLDER = Path(__file__).parents[2] / "assets" / "verl_job"


def read_simulated() -> pd.Series:
    """Seconds per batch of natural length, by case and system."""
    rows = pd.read_csv(FOLDER / "runs.csv")
    return (rows["step_s"] / rows["length_bias"]).set_axis(pd.MultiIndex.from_frame(rows[["case", "system"]]))


def read_published() -> pd.Series:
    """Seconds of a step, by case and system."""
    rows = pd.read_csv(FOLDER / "published.csv")
    return (3600 * rows["hours"] / rows["steps"]).set_axis(pd.MultiIndex.from_frame(rows[["case", "system"]]))


def headline_table() -> pd.DataFrame:
    """README's clusters, verl's own job first: its seconds beside the published ones."""
    clusters, simulated, published = defaults.headline_table(), read_simulated()[PUBLISHED], read_published()[PUBLISHED]
    shares = pd.read_csv(FOLDER / "runs.csv").query("case == @PUBLISHED").set_index("system")["off_policy"]
    colocate_s, size = simulated[COLOCATE], str(JOB).partition(", median")[0]
    own = [
        f"[verl's own job](docs/evidence/grid.md#verls-own-job): {size}, {MODEL}, no filter",
        *(f"{simulated[name]:.0f} (published {published[name]:.0f})" for name in (defaults.SYNC, COLOCATE)),
        simulated[DEFAULT] / simulated[defaults.SYNC],
        simulated[DEFAULT] / colocate_s,
        simulated[EQUAL_SHARE] / colocate_s,
        shares[DEFAULT],
        shares[COLOCATE],
        simulated[DRAFTED] / colocate_s,
    ]
    return pd.concat([pd.DataFrame([own], columns=clusters.columns), clusters])


def in_words() -> str:
    """What the filter and drafts change, and what the planner misses."""
    simulated, separate = read_simulated(), (PUBLISHED, "verl separate_async, 4 of 8 train")
    of = {
        case: {
            system: simulated[case, system] / simulated[case, COLOCATE] for system in (DEFAULT, EQUAL_SHARE, DRAFTED)
        }
        for case in (PUBLISHED, FILTERED)
    }
    return (
        f"The filter and drafts make the difference in the first row: without them the step takes "
        f"{of[PUBLISHED][DEFAULT]:.2f} of colocate_async's, with drafts {of[PUBLISHED][DRAFTED]:.2f}, with DAPO's "
        f"filter (60 % valid, as in the other rows) {of[FILTERED][DEFAULT]:.2f}, or {of[FILTERED][EQUAL_SHARE]:.2f} at "
        f"equal off-policy share, with both {of[FILTERED][DRAFTED]:.2f}. verl's separate_async, published at "
        f"{read_published()[separate]:.0f} s for this job, was simulated at {simulated[separate]:.0f}: missed.\n"
    )


def seconds_table() -> pd.DataFrame:
    """Every case, beside what was published."""
    titles = {
        PUBLISHED: "no filter, as published",
        FILTERED: "60 % valid",
        AS_MEASURED: "no filter, engine as measured",
    }
    simulated = read_simulated().unstack("case")[list(titles)].dropna()
    table = simulated.assign(published=read_published()[PUBLISHED]).rename(columns=titles)
    ours = [DEFAULT, EQUAL_SHARE, *DRAFTS]
    order = [*read_published()[PUBLISHED].index, *ours]
    columns = ["published", *table.columns.drop("published")]
    titles = {name: f"{name[0].upper()}{name[1:]} [s]" for name in columns}
    return table.loc[order, columns].rename(columns=titles).rename_axis("Step of").reset_index()
