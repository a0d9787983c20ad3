"""Figures of a run in words, for the line of a step and for reports."""

from collections.abc import Mapping
from statistics import fmean

from . import keys

Values = Mapping[str, float]

MOST_NAMES = 3  # of metrics in a line


def accuracy_of(values: Values) -> float | None:
    """Of a validation: the mean over its data sources, of the accuracy or else the reward; None without one."""
    found = accuracies_of(values)
    return fmean(found.values()) if found else None


def accuracy_name(values: Values) -> str:
    """Which of the validation's metrics that is, for example `math/acc/mean@4`; empty without one."""
    names = [key.removeprefix(keys.ACCURACY_PREFIX) for key in accuracies_of(values)]
    if len(names) > MOST_NAMES:
        return f"mean of {len(names)} data sources"
    return names[0] if len(names) == 1 else f"mean of {', '.join(names)}" if names else ""


def accuracies_of(values: Values) -> dict[str, float]:
    """Of a validation, by its metrics: one for each data source."""
    means = {key: value for key, value in values.items() if key.startswith(keys.ACCURACY_PREFIX) and "/mean@" in key}
    return {key: value for key, value in means.items() if "/acc/" in key} or means


def seconds(value: float) -> str:
    """Three digits, and no more than whole seconds."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def counted(count: int, one: str) -> str:
    """For example `1 step`, `2 steps`."""
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


def percent(ratio: float) -> str:
    return f"{100 * ratio:.0f} %"
