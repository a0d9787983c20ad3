"""The pool of a round that goes on while its batches are trained."""

from dataclasses import replace

from ...core.ledger import LedgerError
from ...core.pool import PromptPool
from ...core.round import RoundSummary


class RollingPool(PromptPool):
    """Accounts for batches that a round hands over, beside what it does for a round that is closed."""

    @property
    def carried_versions(self) -> tuple[tuple[str, int], ...]:
        """(uid, oldest policy version) of every group that is valid and not trained."""
        return tuple((carried.uid, carried.oldest_version) for carried in self._carried)

    def hand_over(self, summary: RoundSummary) -> RoundSummary:
        """Account for what has ended in a round that goes on, and train on what it hands over. As `settle`.

        Raises:
            LedgerError: if the round has other groups than the pool believes.
        """
        summary = self._take_ended(summary)
        if len(self._in_round) != summary.under_way:
            raise LedgerError(f"{summary.under_way} groups are in the round, {len(self._in_round)} were given to it")
        return replace(summary, trained_uids=self._train(summary.handed_over))
