"""Whether a policy has collapsed. It is asked when hardly a group is valid any more, so that nobody blames the data.

The share of valid groups of the first steps is held against that of the round that cannot be filled. If that is far
lower, the policy has changed, and so may other figures have: those of the newest step are held against the first ones.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

BASE_STEPS = 5  # the first ones that have a figure: what it was before
FEW_VALID = 0.1  # of the share of valid groups before: below it the policy is another one
LEAST_VALID = 0.02  # a share of valid groups before that says nothing: a task may be as hard from the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One that shows a collapse.

    Attributes:
        grows: by this factor it has changed; None: its growth is no sign.
        shrinks: so, the other way.
    """

    key: str
    name: str
    grows: float | None = None
    shrinks: float | None = None

    def has_changed(self, before: float, now: float) -> bool:
        if not math.isfinite(now):
            return math.isfinite(before)
        has_grown = self.grows is not None and now > self.grows * max(before, 1e-6)
        return has_grown or (self.shrinks is not None and now * self.shrinks < before)


@dataclass(slots=True)
class PolicyHealth:
    """Of a run's steps.

    Args:
        figures: that are looked at.
        rejected_share: key of the share of groups that were filtered in a step [0-1].
        skipped: key of whether an update of a step was left out, as its gradient was not finite.
    """

    figures: tuple[Figure, ...]
    rejected_share: str
    skipped: str
    _first: dict[str, list[float]] = field(default_factory=dict)  # key -> its first values
    _valid_shares: list[float] = field(default_factory=list)  # so, too
    _newest: dict[str, float] = field(default_factory=dict)
    _since: dict[str, int] = field(default_factory=dict)  # key -> the first of the steps in which it has changed
    _skipped: int = 0
    _last_step: int = 0

    def observe(self, step: int, values: Mapping[str, float]) -> None:
        """The metrics of a step."""
        self._last_step = step
        self._skipped += int(values.get(self.skipped, 0))
        for figure in self.figures:
            if (now := values.get(figure.key)) is None:
                continue
            first = self._first.setdefault(figure.key, [])
            if first and figure.has_changed(median(first), now):
                self._since.setdefault(figure.key, step)
            else:
                self._since.pop(figure.key, None)
                if len(first) < BASE_STEPS and math.isfinite(now):
                    first.append(now)
            self._newest[figure.key] = now
        if self.rejected_share in values and len(self._valid_shares) < BASE_STEPS:
            self._valid_shares.append(1 - values[self.rejected_share])

    def collapse(self, valid_share: float) -> str | None:
        """In words, that the policy has collapsed, since when, and what shows it; None if nothing says so.

        Args:
            valid_share: of the groups of the round that cannot be filled [0-1].
        """
        before = median(self._valid_shares) if self._valid_shares else 0.0
        if before < LEAST_VALID or valid_share > FEW_VALID * before:
            return None
        changed = [figure for figure in self.figures if figure.key in self._since]
        since = min((self._since[figure.key] for figure in changed), default=self._last_step)
        signs = [f"valid groups {_number(before)} -> {_number(valid_share)}"]
        for figure in changed:
            was, now = median(self._first[figure.key]), self._newest[figure.key]
            signs.append(f"{figure.name} {_number(was)} -> {_number(now)}")
        if self._skipped:
            signs.append(
                f"{self._skipped} step{'s' * (self._skipped > 1)} with an update left out, as its gradient was not "
                "finite"
            )
        return f"the policy has collapsed since step {since}: {', '.join(signs)}"


def _number(value: float) -> str:
    return f"{value:.3g}"
