"""Data frames as Markdown, and the summary that most tables have."""

from typing import Any

import pandas as pd


def markdown(frame: pd.DataFrame) -> str:
    """A table with one value a cell: numbers with three digits, an empty cell for what is missing."""
    lines = [list(frame.columns), ["---"] * len(frame.columns), *frame.astype(object).to_numpy().tolist()]
    return "".join("| " + " | ".join(map(_text, line)) + " |\n" for line in lines)


def spread(groups: Any, column: str, title: str) -> pd.DataFrame:
    """Median, lowest and highest of a column in each group of a data frame, in columns of their own."""
    summary = groups[column].agg(["median", "min", "max"])
    return summary.set_axis([title, f"{title}, lowest", f"{title}, highest"], axis="columns")


def _text(value: Any) -> str:
    if pd.isna(value):
        return ""
    if not isinstance(value, float):
        return str(value).replace("|", "\\|")
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"
