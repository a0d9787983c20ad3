"""How many prompt groups to hold, and how many trajectories a round may have unfinished at once.

Groups are held as named (APRIL's semantics), or as predicted from what the step still needs:

    groups that count = valid ones carried over + groups that are certain + share that is valid * all others

A round starts with enough for `factor` times B such groups, and draws again when fewer than B are left. Where
unfinished groups keep their tokens, the factor is 2: engines stay busy until the stop, and what was begun too early is
not lost. Where they do not, every token of such a group is: it is just above 1. With a cap on the share of older
versions in a batch, less is held (`partial_share.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, sqrt

from .outcome import JUDGED, GroupOutcome
from .staleness import StalenessLimit

KEEPS_FACTOR, LOSES_FACTOR = 2.0, 1.2
REMEMBERED = 0.5  # of the groups judged before, as the next step counts them
LEAST_VALID_SHARE = 0.1  # assumed; else one unlucky step would draw the whole data set


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableGroups:
    """Groups that can still be trained on in a step [groups]."""

    certain: int  # valid, or sure to become so
    open: int  # waiting or running, and not certain

    def expected_valid(self, valid_share: float) -> float:
        """Groups that will turn out valid, if this share of the open ones does."""
        return self.certain + valid_share * self.open

    def most_valid(self, valid_share: float) -> float:
        """Upper estimate of the groups that turn out valid: their mean and three standard deviations."""
        spread = 3 * sqrt(self.open * valid_share * (1 - valid_share))
        return self.certain + min(self.open, valid_share * self.open + spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverSamplingState:
    """What a checkpoint keeps."""

    surplus: int
    valid: float = 0.0
    judged: float = 0.0


@dataclass(slots=True, kw_only=True)
class OverSampling:
    """How many groups to hold, and to draw at a time.

    Args:
        target_valid_groups: B [groups]; where it changes from step to step, what is held beyond it follows.
        batch_size: groups to hold at the start of a round, and to draw at a time. Larger than B: over-sampling.
            Smaller: rounds are filled at that granularity until B can be reached. None = predicted.
        keeps_tokens: whether interrupted groups keep what they have generated.
        versions: that may train on a token, the newest included; None = no limit.
    """

    target_valid_groups: int
    batch_size: int | None
    keeps_tokens: bool = True
    versions: int | None = None
    _valid: float = 0.0  # groups judged valid, of recent steps
    _judged: float = 0.0

    @property
    def valid_share(self) -> float:
        """Share of the groups that will turn out valid, as far as is known [0-1]; 1 before any has ended."""
        return max(LEAST_VALID_SHARE, self._valid / self._judged) if self._judged else 1.0

    @property
    def expected_share(self) -> float:
        """The share of the open groups that counts towards the groups to hold [0-1]: 1 where these are named."""
        return self.valid_share if self.batch_size is None else 1.0

    @property
    def valid_to_hold(self) -> int:
        """Of the available groups, so many are to turn out valid at the start of a round [groups]."""
        return self.target_valid_groups + self.surplus

    @property
    def surplus(self) -> int:
        """Groups that are held beyond B, valid ones where they are predicted [groups]."""
        return self.most_surplus

    @property
    def most_surplus(self) -> int:
        """As many, but for a cap."""
        if self.batch_size is None:
            return ceil(((KEEPS_FACTOR if self.keeps_tokens else LOSES_FACTOR) - 1) * self.target_valid_groups)
        chunks = -(-self.target_valid_groups // self.batch_size)
        return chunks * self.batch_size - self.target_valid_groups

    @property
    def batch_unit(self) -> int:
        """Groups that count as one batch of prompts."""
        return 2 * self.target_valid_groups if self.batch_size is None else self.batch_size

    def missing(self, available: AvailableGroups) -> int:
        """Groups to draw before a round opens."""
        needed = self.valid_to_hold - available.certain
        return max(0, ceil(needed / self.expected_share) - available.open)

    def groups_to_draw(self, available: AvailableGroups) -> int:
        """Groups to draw when the available ones are not expected to reach B any more."""
        return max(1, self.missing(available)) if self.batch_size is None else self.batch_size

    def observe(self, partial_share: float, *, valid: int = 0, judged: int = 0) -> None:
        """Learn from a step.

        Args:
            partial_share: of older versions in the batch that was just trained [0-1].
            valid, judged: groups that ended in the round [count].
        """
        self._valid = REMEMBERED * self._valid + valid
        self._judged = REMEMBERED * self._judged + judged

    def state(self) -> OverSamplingState:
        return OverSamplingState(surplus=self.surplus, valid=self._valid, judged=self._judged)

    def restore(self, state: OverSamplingState) -> None:
        """Go on with what was learned, as far as the options of this run allow."""
        self._valid, self._judged = state.valid, state.judged


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsEnded:
    """Responses of recent rounds, as a checkpoint keeps them."""

    count: float = 0.0
    tok: float = 0.0


@dataclass(slots=True, kw_only=True)
class RoundSize:
    """How many trajectories may generate at once, and how many may be unfinished: as engines have capacity for and
    staleness allows, or as many as are named.

    By Little's law a trajectory stays in flight for (in flight) / (finished per round) rounds. One of twice the mean
    length stays twice as long, so what is in flight is capped such that even the longest is trained before it is too
    stale.

    Args:
        trajectories_per_batch: B n [count].
        longest_tok: the response limit [tokens].
        staleness: how old trained tokens may be.
        named: `rollout_pool_size`, if it is a number [count].
        sizes_itself: `rollout_pool_size=auto`; with neither, slots bound what runs.
    """

    trajectories_per_batch: int
    longest_tok: int
    staleness: StalenessLimit
    named: int | None = None
    sizes_itself: bool = True
    ended: LengthsEnded = LengthsEnded()

    @property
    def mean_len_tok(self) -> float:
        """Of the responses that ended lately; half the limit before any has [tokens]."""
        return self.ended.tok / self.ended.count if self.ended.count else self.longest_tok / 2

    def staleness_bound(self, valid_share: float) -> int | None:
        """Most trajectories in flight that the limit on staleness allows; None = no limit.

        Args:
            valid_share: of the groups that end, those that are valid [0-1].
        """
        rounds = self.staleness.rounds_in_flight(self.mean_len_tok, self.longest_tok)
        return None if rounds is None else int(rounds * self.trajectories_per_batch / valid_share)

    def pool_size(self, capacity: int) -> int | None:
        """Trajectories that may generate at once; None = only slots bound what runs.

        Args:
            capacity: requests that the engines may have in flight.
        """
        return capacity if self.sizes_itself else self.named

    def most_unfinished(self, valid_share: float) -> int | None:
        """Trajectories that may be unfinished at once, those included that wait for calls and need no engine: they
        grow old, too. None = no limit but the pool's size.
        """
        bound = self.staleness_bound(valid_share)
        if bound is None or not (self.sizes_itself or self.named):
            return None
        return max(bound, self.named or 0)

    def observe(self, outcomes: Iterable[GroupOutcome]) -> None:
        """Take in the groups that ended in a round."""
        lens_tok = [length for outcome in outcomes if outcome.verdict in JUDGED for length in outcome.response_lens_tok]
        count, tok = REMEMBERED * self.ended.count + len(lens_tok), REMEMBERED * self.ended.tok + sum(lens_tok)
        self.ended = LengthsEnded(count=count, tok=tok)
