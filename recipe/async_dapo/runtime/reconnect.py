"""A remote call over a connection that may break for a moment: it is repeated, so it may arrive twice."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ray.exceptions import ActorUnavailableError

T = TypeVar("T")

RECONNECT_S = 1.0  # pause before an actor that could not be reached is called again


async def insist(
    call: Callable[[], Awaitable[T]], *, goes_on: Callable[[ActorUnavailableError], bool] = lambda _: True
) -> T:
    """Make a call, again while its actor cannot be reached.

    Args:
        goes_on: is asked after each such call whether to repeat it.

    Raises:
        ActorUnavailableError: where it does not go on.
    """
    while True:
        try:
            return await call()
        except ActorUnavailableError as error:
            if not goes_on(error):
                raise
        await asyncio.sleep(RECONNECT_S)
