"""The imports of users' agent loops, which a worker makes as it starts."""

import importlib
import logging
import threading
from contextlib import suppress

from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

from ..runtime.containment import contained
from ..runtime.logs import told_if_slow

logger = logging.getLogger(__name__)

OTHERS_LIMIT_S = 30.0  # that a start waits for the imports of agent loops which the run may not use


def import_loops(default: str) -> None:
    """Import the modules of the agent loops that users have registered, which would hold up the first trajectories. A
    file may name loops that the run does not use: so what cannot be imported is told where the loop is made, and not
    here, and the start waits for `OTHERS_LIMIT_S` at most, but for the default loop.
    """
    modules = {name: entry["_target_"].rpartition(".")[0] for name, entry in _agent_loop_registry.items()}
    own = modules.pop(default, __package__)
    with told_if_slow(f"the import of {own}, the module of agent loop {default}"):
        _import_quietly(own)
    left = [*modules.values()]

    def import_others() -> None:
        while left:
            _import_quietly(left[0])
            del left[0]

    others = threading.Thread(target=import_others, daemon=True)
    others.start()
    others.join(OTHERS_LIMIT_S)
    for module in left[:1]:
        logger.warning("an agent loop's module %s is not imported after %g s; the run goes on", module, OTHERS_LIMIT_S)


def _import_quietly(module: str) -> None:
    with suppress(Exception), contained():
        importlib.import_module(module)  # Hydra's `get_object` would log an error
