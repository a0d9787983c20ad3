"""The line that a step writes to console and log, whatever trains, this recipe or verl alone."""

from collections import deque
from collections.abc import Iterator
from statistics import fmean

from ...record import keys
from ...record.words import Values, accuracy_name, accuracy_of, percent, seconds


def step_line(step: int, values: Values, *, speedup: float = 1.0, pace: "Pace | None" = None) -> str:
    """For example `step 12/300 | 41.2 s (rollout 28, train 11) | B 512 | ... | failed 0 | 3 h 17 min left`.

    Args:
        values: all metrics that were logged for the step; parts whose metrics are missing are left out.
        speedup: seconds to show for a measured one.
        pace: of the run, if it is known how many steps there are.
    """
    number, left = (f"{step}", []) if pace is None else (f"{step}/{pace.total_steps}", pace.left(step, values))
    return " | ".join((f"step {number}", *_parts(values, speedup), *left))


class Pace:
    """When a run will end, by the mean of its newest steps and of what comes between them.

    Args:
        total_steps: of the run, also if it was resumed.
    """

    NEWEST = 10

    def __init__(self, total_steps: int) -> None:
        self.total_steps = total_steps
        self._newest_s: deque[float] = deque(maxlen=self.NEWEST)

    def left(self, step: int, values: Values) -> list[str]:
        """In words; nothing before the first step and after the last one."""
        if keys.STEP_S in values:
            self._newest_s.append(values[keys.STEP_S] + values.get(keys.VALIDATE_S, 0.0))
        steps = self.total_steps - step
        return [f"{duration(steps * fmean(self._newest_s))} left"] if self._newest_s and steps > 0 else []


def duration(value_s: float) -> str:
    """To the second, the minute or ten minutes, as it is long."""
    if value_s < 99.5:
        return f"{value_s:.0f} s"
    minutes = round(value_s / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60 // 10 * 10} min"


def _parts(values: Values, speedup: float) -> Iterator[str]:
    if keys.STEP_S in values:
        phases = _phases(values, speedup)
        yield f"{seconds(speedup * values[keys.STEP_S])} s" + (f" ({phases})" if phases else "")
    for key, text in (
        (keys.TRAINED_GROUPS, lambda count: f"B {count:.0f}"),
        (keys.REJECTED_RATIO, lambda ratio: f"filtered {percent(ratio)}"),
        (keys.INTERRUPTED, lambda count: f"interrupted {count:.0f}"),
        (keys.IDLE_RATIO, lambda ratio: f"empty places {percent(ratio)}"),
        (keys.DRAFT_TOK_PER_STEP, lambda tok: f"drafts {tok:.2f} tok/step"),
        (keys.OFF_POLICY, lambda ratio: f"off-policy {percent(ratio)}"),
        (keys.FAILED_GROUPS, lambda count: f"failed {count:.0f}"),
        (keys.REWARD, lambda reward: f"reward {reward:.3g}"),
    ):
        if key in values:
            yield text(values[key])
    if values.get(keys.SKIPPED_UPDATE):
        yield "update left out: its gradient is not finite"
    if (failed := values.get(keys.CALLS_FAILED_RATIO, 0.0)) > keys.MANY_FAILED_CALLS:
        yield f"calls failed {percent(failed)}"
    if (accuracy := accuracy_of(values)) is not None:
        yield f"accuracy {accuracy:.3g} ({accuracy_name(values)})"
    if values.get(keys.VALIDATION_FAILED):
        yield f"failed in validation {values[keys.VALIDATION_FAILED]:.0f}"


def _phases(values: Values, speedup: float) -> str:
    phases = {
        "rollout": (keys.ROLLOUT_S,),
        "train": (*keys.LOG_PROB_PARTS, *keys.TRAIN_PARTS),
        "save": (keys.SAVE_S,),
    }
    timed = {name: [values[key] for key in parts if key in values] for name, parts in phases.items()}
    return ", ".join(f"{name} {seconds(speedup * sum(times_s))}" for name, times_s in timed.items() if times_s)
