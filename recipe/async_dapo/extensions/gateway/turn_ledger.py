"""What became of the tokens that were sampled for a session: nothing may vanish between the engine and the loss."""

from collections.abc import Sequence
from dataclasses import dataclass

from .conversation import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLedger:
    """Sampled tokens, and the four ways they can go [tokens]. `sampled` comes from the record of the engines' answers,
    the others from the rows.

    Attributes:
        context_only: beyond the length of a response that is trained.
        rolled_back: taken back by the chat template, at the end of a turn that goes on.
        unanswered: of turns whose reply no client has had.
    """

    sampled: int
    trained: int
    context_only: int
    rolled_back: int
    unanswered: int

    @classmethod
    def of(cls, rows: Sequence[Row], *, limit_tok: int, sampled: Sequence[int] | None) -> "TurnLedger":
        """
        Args:
            limit_tok: longest response that is trained [tokens].
            sampled: tokens of each turn in the record, those of the rows first and in their order; None outside of a
                trajectory.
        """
        trained = [answer for row in rows for answer in row.trained]
        in_rows = [len(answer.token_ids) for answer in trained]
        recorded = in_rows if sampled is None else sampled
        return cls(
            sampled=sum(recorded),
            trained=sum(sum(row.mask[:limit_tok]) for row in rows),
            context_only=sum(sum(row.mask[limit_tok:]) for row in rows),
            rolled_back=sum(row.rolled_back_tok for row in rows),
            unanswered=sum(recorded[len(in_rows) :]),
        )

    @property
    def closes(self) -> bool:
        return self.sampled == self.trained + self.context_only + self.rolled_back + self.unanswered
