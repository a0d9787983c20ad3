"""The tables of the planner's results: what published runs and real engines say of its predictions."""

import json
from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parents[2] / "assets" / "plan"
TARGET = 0.15  # largest relative error that is no miss


REFERENCE = {
    "system": "System",
    "step_s": "Step [s]",
    "rollout_s": "Rollout [s]",
    "speed_up": "Speed-up",
    "idle_ratio": "Idle",
    "waste_ratio": "Waste",
    "off_policy_ratio": "Off-policy",
    "length_bias": "Trained / natural length",
}


def reference_table() -> pd.DataFrame:
    """What `python -m recipe.async_dapo.plan --json` said of its reference setting; `speed_up` is of tokens/s."""
    plan = json.loads((FOLDER / "reference.json").read_text())
    return pd.DataFrame(plan["rows"])[list(REFERENCE)].rename(columns=REFERENCE)


def published_table() -> pd.DataFrame:
    frame = pd.read_csv(FOLDER / "validation.csv")
    return _judged(frame)[["Source", "What", "Published", "Simulated", "Error", "Target"]]


def orders_table() -> pd.DataFrame:
    frame = pd.read_csv(FOLDER / "orders.csv")
    frame["holds"] = frame["holds"].map({True: "holds", False: "missed"})
    return frame.rename(columns={"claim": "Published order", "holds": "Simulated"})


def calibration_table() -> pd.DataFrame:
    frame = pd.read_csv(FOLDER / "quickstart_predicted.csv").rename(
        columns={
            "measured_s": "Measured [s]",
            "predicted_s": "Predicted [s]",
            "measured_ratio": "Measured ratio",
            "predicted_ratio": "Predicted ratio",
        }
    )
    return _judged(frame)


def frontier_table() -> pd.DataFrame:
    """Seconds of a step of natural length, over those of the defaults, with the off-policy share."""
    frame = pd.read_csv(FOLDER / "frontier.csv")
    defaults = frame[frame["variant"] == "defaults"].set_index("setting")["step_s"]
    frame["ratio"] = frame["step_s"] / frame["setting"].map(defaults)
    titles = {
        "setting": "Setting",
        "variant": "Variant",
        "step_s": "Step [s]",
        "ratio": "Over the defaults",
        "off_policy": "Off-policy",
        "staleness": "Staleness",
        "prefill": "Prefill, of busy time",
    }
    return frame[list(titles)].rename(columns=titles)


def scale_table() -> pd.DataFrame:
    titles = ["Servers", "Trajectories", "Events", "CPU of a step [s]", "Memory [GB]"]
    return pd.read_csv(FOLDER / "scale.csv", dtype={"events": float}).set_axis(titles, axis="columns")


def _judged(frame: pd.DataFrame) -> pd.DataFrame:
    frame["target"] = ["met" if abs(error) <= TARGET else "missed" for error in frame["error"]]
    frame["error"] = [f"{100 * error:+.0f} %" for error in frame["error"]]
    return frame.rename(columns={name: name.capitalize() for name in frame.columns if name.islower()})
