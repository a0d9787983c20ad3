"""What `runs.csv` comes to: ratios, published seconds beside simulated ones, what the filter and drafts change."""

from pathlib import Path

import pandas as pd

from benchmarks.defaults import draw as defaults
from benchmarks.defaults.run import COLOCATE, DEFAULT, EQUAL_SHARE

from .run import DRAFTED, DRAFTS, ENGINE_2025, FILTERED, JOB, MODEL, PUBLISHED

FILTERS = {PUBLISHED: "no", FILTERED: "yes, 60 % valid"}
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
    """README's clusters, verl's own job first."""
    simulated, size = read_simulated()[PUBLISHED], str(JOB).partition(", median")[0]
    own = [
        f"[verl's own job](docs/evidence/grid.md#verls-own-job): {size}, {MODEL}, no filter",
        simulated[DEFAULT] / simulated[defaults.SYNC],
        *_over_colocate(simulated)[[DEFAULT, EQUAL_SHARE]],
    ]
    clusters = defaults.headline_table()
    return pd.concat([pd.DataFrame([own], columns=clusters.columns), clusters])


def filter_and_drafts() -> pd.DataFrame:
    """What DAPO's filter and drafts change in this recipe's step over colocate_async's."""
    of = {name: _over_colocate(read_simulated()[case]) for case, name in FILTERS.items()}
    columns = {
        "No drafts": DEFAULT,
        "No drafts, equal off-policy share": EQUAL_SHARE,
        "Drafts (0.6 accepted), colocate_async without": DRAFTED,
    }
    rows = [
        {"DAPO's filter": name} | {title: ratios[one] for title, one in columns.items()} for name, ratios in of.items()
    ]
    return pd.DataFrame(rows)


def _over_colocate(seconds: pd.Series) -> pd.Series:
    return seconds / seconds[COLOCATE]


def seconds_table() -> pd.DataFrame:
    """Every case, beside what was published."""
    titles = {
        PUBLISHED: "no filter, as published",
        FILTERED: "60 % valid",
        ENGINE_2025: "no filter, engines of 2025",
    }
    simulated = read_simulated().unstack("case")[list(titles)].dropna(how="all")
    table = simulated.assign(published=read_published()[PUBLISHED]).rename(columns=titles)
    ours = [DEFAULT, EQUAL_SHARE, *DRAFTS]
    order = [*read_published()[PUBLISHED].index, *ours]
    columns = ["published", *table.columns.drop("published")]
    titles = {name: f"{name[0].upper()}{name[1:]} [s]" for name in columns}
    return table.loc[order, columns].rename(columns=titles).rename_axis("Step of").reset_index()
