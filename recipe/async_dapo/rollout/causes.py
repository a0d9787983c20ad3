"""What a failed trajectory failed of, for people: one line with file and line, and the traceback of the user's code."""

from ray.exceptions import RayTaskError

from ..core.failures import Cause
from .reward_process import describe, user_traceback
from .started_process import RewardRaised


def cause_of(error: BaseException) -> Cause:
    """Of an exception that was raised here, in an actor, or in a reward process."""
    if not isinstance(error, RayTaskError):
        return Cause(describe(error), user_traceback(error))
    bare = error.cause
    if isinstance(bare, RewardRaised):
        return Cause(bare.summary, bare.traceback)
    return Cause(f"{type(bare).__name__}: {bare}", str(error))  # what Ray raises has its traceback there only
