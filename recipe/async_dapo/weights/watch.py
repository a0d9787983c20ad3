"""A training worker's view of the engine it serves: whether it is still alive, in a form that a wait can end with."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError

from ..aio import RECONNECT_S


class EngineWatch:
    """Notes the first thing that goes wrong with an engine; `fd` can be read from then on.

    Args:
        servers: the engine's server actors, one a node.
    """

    def __init__(self, servers: Sequence[ActorHandle]) -> None:
        self.fd, self._notify = os.pipe()
        self.failure: BaseException | None = None
        self._lock = threading.Lock()
        for server in servers:
            self._watch(server)

    def follow(self, call: Future[Any]) -> None:
        """A failure of this call is one of the engine."""
        call.add_done_callback(lambda done: self.note(done.exception()))

    def note(self, failure: BaseException | None) -> None:
        """Called in any thread."""
        with self._lock:
            if failure is not None and self.failure is None:
                self.failure = failure
                os.write(self._notify, b"!")

    def _watch(self, server: ActorHandle) -> None:
        server.until_death.remote().future().add_done_callback(partial(self._on_end, server))

    def _on_end(self, server: ActorHandle, call: Future[Any]) -> None:
        error = call.exception()
        if isinstance(error, ActorUnavailableError):  # only the connection broke
            again = threading.Timer(RECONNECT_S, self._watch, [server])
            again.daemon = True
            again.start()
        else:
            self.note(error)
