"""What `runs.csv` comes to: how far planned steps and speed-ups are from published ones."""

from pathlib import Path

import pandas as pd

from .run import FITTED
from .settings import VERLS_JOB

FILE = Path(__file__).parents[2] / "assets" / "speed_ups" / "runs.csv"
NEAR = 0.10
# Of what is missed, by the beginning of its source; the page says more.
WHY = {
    "CoPRIS, R1-1.5B": "largest pool costs too little",
    "CoPRIS, R1-7B": "lengths not published",
    "CoPRIS, Qwen3-8B": "lengths not published",
    "MiMo": "its adaptation, accelerator and n not published",
    "real stack": "verl's client slows engines that share its CPU",
}


def read() -> pd.DataFrame:
    """With `error`, of planned over published."""
    rows = pd.read_csv(FILE, keep_default_na=True).fillna({"fitted_to": ""})
    return rows.assign(error=rows["planned"] / rows["published"] - 1)


def table() -> pd.DataFrame:
    rows = read()
    rows = rows[rows["published"].notna()]
    return pd.DataFrame(
        {
            "Published": rows["source"],
            "Engines fitted to": rows["fitted_to"].where(rows["fitted_to"] != "", "nothing"),
            "Engines' seconds, over the measured ones": rows["engine_factor"]
            .where(rows["what"] == FITTED)
            .map(_factor),
            "Planned": rows["system"] + ", " + rows["what"],
            "Published value": rows["published"],
            "Planned value": rows["planned"],
            "Off": (100 * rows["error"]).map("{:+.0f} %".format),
            "Missed, as": [_why(source, error) for source, error in zip(rows["source"], rows["error"], strict=True)],
        }
    )


def _why(source: str, error: float) -> str:
    return "" if abs(error) <= NEAR else next(why for begins, why in WHY.items() if source.startswith(begins))


def _factor(value: float) -> str:
    return "2025's" if pd.isna(value) else f"{value:.2f}"


def said() -> str:
    """How many are near."""
    errors = read()["error"].dropna().abs()
    near = (errors <= NEAR).sum()
    return f"{near} of {len(errors)} rows ({near / len(errors):.0%}) are within {NEAR:.0%}; the goal was 80 %.\n"


def verls_job() -> pd.DataFrame:
    """The job on which verl publishes its asynchronous modes: each mode from the other, and this recipe's default."""
    rows = read()
    rows = rows[rows["source"] == VERLS_JOB]
    off = (100 * rows["error"]).map("{:+.0f} %".format).where(rows["error"].notna(), "")
    columns = {
        "fitted_to": "Engines fitted to",
        "engine_factor": "Seconds over the measured ones",
        "system": "Step of",
        "planned": "Planned [s]",
        "published": "Published [s]",
    }
    return rows[list(columns)].rename(columns=columns).assign(Off=off)
