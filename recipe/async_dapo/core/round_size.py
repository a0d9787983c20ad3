"""How many trajectories a round may have unfinished at once: as many as engines have room for and staleness allows."""

from collections.abc import Iterable
from dataclasses import dataclass

from .outcome import JUDGED, GroupOutcome
from .staleness import StalenessLimit

REMEMBERED = 0.5  # of the responses ended before, as the next step counts them


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsEnded:
    """Responses of recent rounds, as a checkpoint keeps them."""

    count: float = 0.0
    tok: float = 0.0


@dataclass(slots=True, kw_only=True)
class RoundSize:
    """In a steady state a trajectory is in flight for as many rounds as there are trajectories in flight for each that
    a round ends, and one of twice the mean length for twice as many: what starts must be trained before it is too
    stale.

    Args:
        trajectories_per_batch: B n [count].
        longest_tok: the response limit [tokens].
        staleness: how old trained tokens may be.
    """

    trajectories_per_batch: int
    longest_tok: int
    staleness: StalenessLimit
    _ended: float = 0.0  # trajectories of recent rounds
    _ended_tok: float = 0.0

    @property
    def mean_len_tok(self) -> float:
        """Of the responses that ended lately; half the limit before any has [tokens]."""
        return self._ended_tok / self._ended if self._ended else self.longest_tok / 2

    def staleness_bound(self, trained_share: float) -> int | None:
        """Most trajectories in flight that the limit on staleness allows; None = no limit.

        Args:
            trained_share: of the trajectories that end, those of valid groups [0-1].
        """
        rounds = self.staleness.rounds_in_flight(self.mean_len_tok, self.longest_tok)
        return None if rounds is None else int(rounds * self.trajectories_per_batch / trained_share)

    def decide(self, places: int, trained_share: float) -> int:
        """Trajectories that may generate at once.

        Args:
            places: requests that the engines have room for.
            trained_share: of the trajectories that end, those of valid groups [0-1].
        """
        bound = self.staleness_bound(trained_share)
        return max(1, places if bound is None else min(places, bound))

    def most_unfinished(self, pool_size: int | None, trained_share: float) -> int | None:
        """Trajectories that may be unfinished at once, those included that wait for calls and need no engine: they
        grow old, too. None = as many as the groups that are held have.

        Args:
            pool_size: that may generate at once; None = no limit.
            trained_share: of the trajectories that end, those of valid groups [0-1].
        """
        bound = self.staleness_bound(trained_share)
        return None if bound is None or pool_size is None else max(bound, pool_size)

    def observe(self, outcomes: Iterable[GroupOutcome]) -> None:
        """Take in the groups that ended in a round."""
        lens_tok = [length for outcome in outcomes if outcome.verdict in JUDGED for length in outcome.response_lens_tok]
        self._ended = REMEMBERED * self._ended + len(lens_tok)
        self._ended_tok = REMEMBERED * self._ended_tok + sum(lens_tok)

    def state(self) -> LengthsEnded:
        return LengthsEnded(count=self._ended, tok=self._ended_tok)

    def restore(self, state: LengthsEnded) -> None:
        self._ended, self._ended_tok = state.count, state.tok
