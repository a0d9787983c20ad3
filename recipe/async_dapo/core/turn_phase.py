"""Whether a turn goes on: what follows for it when its agent loop asks for it, and after each of its requests."""

from enum import Enum, auto


class TurnPhase(Enum):
    """What follows for a turn."""

    END = auto()  # it is whole: its agent loop goes on
    REQUEST = auto()  # a request for its next tokens
    REST = auto()  # it goes on in the next round


def phase_of(*, rests: bool, is_over: bool, round_left_tok: float) -> TurnPhase:
    """What follows for a turn.

    Args:
        rests: whether the round is over for the trajectory.
        is_over: whether the engine has ended the turn, or the turn's budget is spent.
        round_left_tok: tokens that the trajectory may still generate in this round.
    """
    if rests:
        return TurnPhase.REST
    if is_over:
        return TurnPhase.END
    return TurnPhase.REQUEST if round_left_tok > 0 else TurnPhase.REST
