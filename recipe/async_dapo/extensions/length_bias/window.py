"""Does early stopping prefer short answers? Response lengths of what is trained against what was dispatched."""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...core.outcome import GroupOutcome, Verdict
from ...core.trajectory import PromptGroup


@dataclass(slots=True, kw_only=True)
class ObservedLengths:
    """Mean response lengths of a group [tokens]: of its longest attempt, and of the one that ended."""

    uid: str
    longest_tok: float
    ended_tok: float = 0.0
    is_trained: bool = False


def mean_tok(lens_tok: Sequence[float]) -> float:
    """0 of none."""
    return sum(lens_tok) / len(lens_tok) if lens_tok else 0.0


def quantile_tok(lens_tok: Sequence[float], q: float) -> float:
    """The smallest length that a share q of them does not exceed; 0 of none."""
    return sorted(lens_tok)[max(0, math.ceil(q * len(lens_tok)) - 1)] if lens_tok else 0.0


class LengthBiasWindow:
    """Mean response length per group over the last groups that were started, whether or not they were trained.

    Filtered and failed groups are excluded from both means, because early stopping did not decide their fate. So are
    attempts that were thrown away whatever their lengths. `dispatched` counts a group's longest attempt, a lower bound
    while it has not ended; `trained` counts the attempt that was trained. Discarding a long attempt and training on a
    shorter one thus shows up as bias.

    Args:
        size: groups remembered [count].
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._groups: OrderedDict[str, ObservedLengths] = OrderedDict()

    def observe(self, outcomes: Iterable[GroupOutcome], unfinished: Iterable[PromptGroup]) -> None:
        """Take in a round, before unfinished groups lose their tokens."""
        for group in unfinished:
            self._note(group.uid, [trajectory.generated_tok for trajectory in group.trajectories])
        for outcome in outcomes:
            if outcome.verdict is Verdict.VALID:
                self._note(outcome.prompt_uid, outcome.response_lens_tok)
                self._groups[outcome.prompt_uid].ended_tok = mean_tok(outcome.response_lens_tok)
            elif outcome.verdict is not Verdict.SET_ASIDE:
                self._groups.pop(outcome.prompt_uid, None)

    def mark_trained(self, uids: Iterable[str]) -> None:
        for uid in uids:
            if uid in self._groups:
                self._groups[uid].is_trained = True

    @property
    def dispatched(self) -> list[float]:
        """Of each group, the mean response length of its longest attempt [tokens]."""
        return [group.longest_tok for group in self._groups.values()]

    @property
    def trained(self) -> list[float]:
        """Of each trained group, that of the attempt it was trained on [tokens]."""
        return [group.ended_tok for group in self._groups.values() if group.is_trained]

    def state(self) -> tuple[ObservedLengths, ...]:
        """What is remembered, oldest first."""
        return tuple(replace(group) for group in self._groups.values())

    def restore(self, state: Sequence[ObservedLengths]) -> None:
        self._groups = OrderedDict((seen.uid, replace(seen)) for seen in state[-self._size :])

    def _note(self, uid: str, lens_tok: Sequence[int]) -> None:
        mean_len_tok = mean_tok(lens_tok)
        known = self._groups.get(uid)
        if known is None:
            self._groups[uid] = ObservedLengths(uid=uid, longest_tok=mean_len_tok)
            if len(self._groups) > self._size:
                self._groups.popitem(last=False)
        else:
            known.longest_tok = max(known.longest_tok, mean_len_tok)
