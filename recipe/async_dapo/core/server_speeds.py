"""How fast servers are, compared with each other and whatever each had to do.

A step of an engine that runs b requests takes about a + c b seconds: to read the weights, and what every request adds.
a and c are fitted to the steps of the servers that are as fast as any. A server's speed is the time that they would
have taken for its batches, over the time that it took. With fewer requests than others have, a server makes fewer
tokens a second and more of each request: neither rate alone tells how fast it is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

ALIKE = 0.1  # standard deviation of batches over their mean: where it is less, they do not tell a from c
RISE = 1.25  # at most, from round to round


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """Sums over an engine's steps in which something ran."""

    steps: int = 0
    requests: int = 0
    requests2: int = 0  # of their squares
    seconds: float = 0.0
    request_s: float = 0.0  # requests times seconds

    def __add__(self, other: "StepSums") -> "StepSums":
        return StepSums(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def __sub__(self, other: "StepSums") -> "StepSums":
        return StepSums(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(self)})

    def seconds_for(self, others: "StepSums") -> tuple[float, float]:
        """What another server's batches would have taken, if its steps were like these: at least and at most [s]."""
        mean, mean_s = self.requests / self.steps, self.seconds / self.steps
        steepest = mean_s / mean  # seconds that a request adds, if the weights took none
        variance = self.requests2 / self.steps - mean**2
        slopes = [0.0, steepest]
        if variance > (ALIKE * mean) ** 2:
            fitted = (self.request_s / self.steps - mean * mean_s) / variance
            slopes = [min(max(fitted, 0.0), steepest)]
        seconds = [others.steps * mean_s + slope * (others.requests - others.steps * mean) for slope in slopes]
        return min(seconds), max(seconds)


def speeds(sums: Mapping[str, StepSums], before: Mapping[str, float]) -> dict[str, float]:
    """Speed of each server that has run anything [> 0; 1 = like the others].

    Where batches were too much alike to fit, a speed keeps its place between what is possible, and rises bit by bit, at
    most halfway (of its logarithm): with more work a server's upper limit falls, and a whole way would pass it.

    Args:
        before: speeds so far; the others are not compared with those that were slow.
    """
    known = {server_id: each for server_id, each in sums.items() if each.requests and each.seconds > 0}
    fast = {server_id: each for server_id, each in known.items() if before[server_id] >= 1}
    all_fast, everyone = (sum(some.values(), StepSums()) for some in (fast, known))
    result = {}
    for server_id, own in known.items():
        others = all_fast - own if server_id in fast else all_fast
        if not others.steps:
            others = everyone - own
        if others.steps:
            least_s, most_s = others.seconds_for(own)
            least, most = least_s / own.seconds, most_s / own.seconds
            risen = min(RISE * before[server_id], math.sqrt(before[server_id] * most))
            result[server_id] = min(max(risen, least), most)
    return result
