"""Whether a trajectory goes on: what it is at, and what follows for the turn that its agent loop asks for."""

from enum import Enum, auto


class Step(Enum):
    """What a trajectory is at. The stop of a round ends its loop at once, but waits for a request that is out: the
    engine gives it back with what it has generated."""

    LOOP = auto()  # its agent loop goes on, in code of its own or in a call
    REQUEST = auto()  # a request for its turn is out
    REST = auto()  # neither a request nor a call may begin before the next round


def next_step(step: Step, *, is_over: bool, round_left_tok: float) -> Step:
    """What follows for a turn, when its loop asks for it and after each of its requests.

    Args:
        step: what the trajectory was at.
        is_over: whether the engine has ended the turn, or the turn's budget is spent.
        round_left_tok: tokens that the trajectory may still generate in this round.
    """
    if step is Step.REST:
        return Step.REST
    if is_over:
        return Step.LOOP
    return Step.REQUEST if round_left_tok > 0 else Step.REST
