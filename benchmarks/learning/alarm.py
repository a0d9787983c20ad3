"""Whether what a run measures anyway tells at half time that it will be lost.

The rule is the hint of a run's log and report, here on the second quarter's mean of k3(mu, pi_prox). Its limit was
published, not chosen by these runs.
"""

import pandas as pd

from recipe.async_dapo_lab.report.health import UNSTABLE_NATS

from .summary import JOB

HEALTHY = 0.05  # accuracy below on-policy's at most, at the end
BROKEN = 0.15  # the same at half time, where a rule no longer foretells
_FOUND, _MOST_FALSE = 0.8, 0.05
_FEWEST = 10  # lost runs by which a share is judged

Share = tuple[int, int]  # so many of so many


def alarms(pairs: pd.DataFrame) -> dict[str, Share]:
    """Runs above the limit, and all runs, of each kind."""
    judged = pairs[pairs["staleness"] != "0"]
    lost, healthy = judged["lost"], (judged["gap"] > -HEALTHY) & ~judged["lost"]
    near = healthy & judged.groupby(JOB)["lost"].transform("any")
    kinds = {
        "lost": lost,
        "lost, not yet at half time": lost & (judged["half_gap"] > -BROKEN),
        "healthy": healthy,
        "healthy, with the task and rate of a lost one": near,
        "between": ~lost & ~healthy,
    }
    return {
        name: (int((judged["nats_at_half"] > UNSTABLE_NATS)[of].sum()), int(of.sum())) for name, of in kinds.items()
    }


def table(pairs: pd.DataFrame) -> pd.DataFrame:
    """A row a kind of runs."""
    return pd.DataFrame({"Runs": name, "Flagged": f"{told} of {of}"} for name, (told, of) in alarms(pairs).items())


def target(pairs: pd.DataFrame) -> dict[str, object]:
    """As a row beside those of `summary.targets`."""
    shares = alarms(pairs)
    (found, lost), (false, healthy) = shares["lost"], shares["healthy"]
    measured = f"{found} of {lost}, false {false} of {healthy}"
    met = "yes" if found >= _FOUND * lost and false <= _MOST_FALSE * healthy else "no"
    if lost < _FEWEST:
        met = "open: too few lost runs"
    name = f"Alarm at half time: lost runs found, with at most {100 * _MOST_FALSE:g} % false"
    return {"Target": name, "Limit": _FOUND, "Measured, worst": measured, "Met": met}
