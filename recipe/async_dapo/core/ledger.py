"""Every prompt drawn is accounted for: the terms of the ledger, waiting and buffered groups included, sum to drawn."""

from dataclasses import asdict, dataclass


class LedgerError(AssertionError):
    """A prompt group vanished or was counted twice."""


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Counts of prompt groups since the start of the run, over checkpoints [groups]."""

    drawn: int = 0
    trained: int = 0
    filtered: int = 0
    screened: int = 0  # ended after a few samples that were alike
    failed: int = 0
    retired: int = 0  # given up: too stale, or its agent loops gone; its prompt is drawn again under a new uid

    def check(self, *, waiting: int, buffered: int, deferred: int = 0) -> dict[str, int]:
        """All terms, if they close.

        Args:
            waiting: groups that are held and have generated nothing that is kept [groups].
            deferred: groups that are held back for later steps by their prompts' history [groups].
            buffered: groups that are held with generated tokens, unfinished or valid and not yet trained [groups].

        Raises:
            LedgerError: if a group vanished or was counted twice.
        """
        held = {"waiting": waiting, "deferred": deferred, "buffered": buffered}
        terms = asdict(self) | held
        accounted = sum(terms.values()) - self.drawn
        if accounted != self.drawn:
            raise LedgerError(f"ledger does not close: drawn={self.drawn}, accounted={accounted}, terms={terms}")
        return terms
