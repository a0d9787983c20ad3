"""When trajectories that fail are no accident: of the groups that they end, too few are left to train on.

A group is lost with its first trajectory that fails. If each fails with probability q, a share of (1 - q) ** n of the
groups of n is complete. Whether q is too high is Wald's sequential probability ratio test on trajectories, scored ones
against failed ones: it may be asked after every group, and a step of which at least a tenth of the groups are complete
is stopped with a probability of at most one in a million, however many it draws. If all trajectories fail, that is
known after 15 failures (n = 16); if every second one does, after about 40 trajectories.

Trajectories of a prompt may fail together, or one of each prompt's: the same test on groups does not mind.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

TOLERABLE_COMPLETE_SHARE = 0.1
HOPELESS_COMPLETE_SHARE = 0.001
FALSE_ALARM = 1e-6


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a trajectory failed.

    Attributes:
        summary: one line: what was raised, and in which file and line of the user's code.
        traceback: from the user's first frame on; empty where nothing was raised.
    """

    summary: str
    traceback: str = ""

    @property
    def place(self) -> str:
        """The files and lines it was raised through; what is raised may name the prompt, so that no two are alike."""
        lines = [line for line in self.traceback.splitlines() if line.startswith("  File ")]
        return "\n".join(lines) or self.summary


class KnownPlaces:
    """The places of causes that have been logged: each is worth a line once."""

    def __init__(self) -> None:
        self._places: set[str] = set()

    def is_new(self, cause: Cause) -> bool:
        """Whether its place was not known; from now on it is."""
        is_new = cause.place not in self._places
        self._places.add(cause.place)
        return is_new


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedGroups:
    """How groups have ended [groups], and what became of their trajectories [count]."""

    valid: int = 0
    filtered: int = 0
    screened: int = 0
    set_aside: int = 0  # not finished, though the round goes on
    failed: Mapping[str, int] = field(default_factory=dict)  # by reason
    causes: Mapping[tuple[str, str], int] = field(default_factory=dict)  # of failed ones: by reason and summary
    scored_trajectories: int = 0
    failed_trajectories: int = 0

    def __str__(self) -> str:
        counts = {"valid": self.valid, "filtered": self.filtered, "screened out": self.screened, **self.failed}
        counts["set aside"] = self.set_aside
        return ", ".join(f"{count} {how}" for how, count in counts.items() if count)

    @property
    def num_failed(self) -> int:
        return sum(self.failed.values())

    @property
    def num_scored(self) -> int:
        return self.valid + self.filtered + self.screened

    @property
    def main_reason(self) -> str:
        """Why most of the failed groups failed."""
        return max(self.failed, key=lambda reason: self.failed[reason])

    @property
    def main_cause(self) -> str:
        """What most groups that failed for the main reason failed of; empty if unknown."""
        known = [cause for cause in self.causes if cause[0] == self.main_reason and cause[1]]
        return max(known, key=lambda cause: self.causes[cause], default=("", ""))[1]

    def is_hopeless(self, n: int) -> bool:
        """Whether hardly a group of n can be complete."""
        of_trajectories = log_likelihood_ratio(failed=self.failed_trajectories, scored=self.scored_trajectories, n=n)
        of_groups = log_likelihood_ratio(failed=self.num_failed, scored=self.num_scored, n=1)
        return max(of_trajectories, of_groups) >= -math.log(FALSE_ALARM)

    def are_hardly_any(self, target_valid_groups: int) -> bool:
        """Whether hardly a group ends within the round: twice as many as are wanted have been set aside instead."""
        of_groups = log_likelihood_ratio(failed=self.set_aside, scored=self.num_scored, n=1)
        return self.set_aside >= 2 * target_valid_groups and of_groups >= -math.log(FALSE_ALARM)


def failure_rate(complete_share: float, n: int) -> float:
    """The rate at which trajectories fail when that share of the groups of n is complete [0-1]."""
    return 1.0 - complete_share ** (1.0 / n)


def log_likelihood_ratio(*, failed: int, scored: int, n: int) -> float:
    """Of these counts, at the hopeless failure rate over the tolerable one."""
    tolerable, hopeless = failure_rate(TOLERABLE_COMPLETE_SHARE, n), failure_rate(HOPELESS_COMPLETE_SHARE, n)
    return failed * math.log(hopeless / tolerable) + scored * math.log((1.0 - hopeless) / (1.0 - tolerable))
