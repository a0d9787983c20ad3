"""What must add up at every step: every prompt drawn is accounted for, and a batch is exactly B groups of n."""

from collections.abc import Collection
from dataclasses import asdict, dataclass


class LedgerError(AssertionError):
    """A prompt group vanished or was counted twice."""


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Counts of prompt groups since the start of the run, over checkpoints [groups]."""

    drawn: int = 0
    trained: int = 0
    filtered: int = 0
    failed: int = 0
    retired: int = 0  # given up, see `PromptPool.retire`; its prompt is drawn again under a new uid

    def check(self, *, waiting: int, buffered: int, deferred: int = 0) -> dict[str, int]:
        """All terms, if they close.

        Args:
            waiting: groups that are held and have generated nothing that is kept [groups].
            buffered: groups that are held with generated tokens, unfinished or valid and not yet trained [groups].
            deferred: groups that the source of prompts holds back for later steps [groups].

        Raises:
            LedgerError: if a group vanished or was counted twice.
        """
        held = {"waiting": waiting, "deferred": deferred, "buffered": buffered}
        terms = asdict(self) | held
        accounted = sum(terms.values()) - self.drawn
        if accounted != self.drawn:
            raise LedgerError(f"ledger does not close: drawn={self.drawn}, accounted={accounted}, terms={terms}")
        return terms


class InexactBatch(RuntimeError):
    """A batch has other trajectories than those of the groups that were chosen."""


def check_batch(keys: Collection[str], uids: Collection[str], *, groups: int, n: int) -> None:
    """See that a step trains on exactly B groups of exactly n trajectories.

    Args:
        keys: of the batch's outputs, `{uid}_{session}_{output}`; a trajectory has one or more.
        uids: of the groups that were chosen.

    Raises:
        InexactBatch: if they are not B groups of n.
    """
    sessions = {tuple(key.rsplit("_", 1)[0].split("_")) for key in keys}
    expected = {(uid, str(session)) for uid in uids for session in range(n)}
    if sessions != expected or len(uids) != groups:
        raise InexactBatch(f"batch is not {groups} groups of {n}: {len(uids)} groups, {len(sessions)} sessions")
