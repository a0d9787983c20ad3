"""pytest's capture of logs without its looks at every logger: it takes six for each test, at thousands of loggers once
vLLM is imported, for those that hand nothing on to the root. Here these are noted when they are set so.
"""

import logging
from typing import Any

from _pytest.logging import catching_logs

_ALONE: set[logging.Logger] = set()  # those that hand nothing on


class _Propagate:
    """`Logger.propagate`, kept in the place where it was."""

    def __get__(self, logger: logging.Logger | None, owner: type) -> Any:
        return self if logger is None else logger.__dict__["propagate"]

    def __set__(self, logger: logging.Logger, value: object) -> None:
        logger.__dict__["propagate"] = value
        (_ALONE.discard if value else _ALONE.add)(logger)


def _enter(self: Any) -> Any:
    """As pytest's own: attach the handler to the root, and to each named logger that hands nothing on to it."""
    root = logging.getLogger()
    named = root.manager.loggerDict
    if self.level is not None:
        self.handler.setLevel(self.level)
    for logger in (root, *(one for one in _ALONE if named.get(one.name) is one)):
        logger.addHandler(self.handler)
        self.attached_loggers.append(logger)
    if self.level is not None:
        self.orig_level = root.level
        root.setLevel(min(root.level, self.level))
    return self.handler


def note_loggers() -> None:
    """From now on, in this process and its forks."""
    known = [one for one in logging.Logger.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    _ALONE.update(one for one in known if not one.propagate)
    logging.Logger.propagate = _Propagate()  # type: ignore[assignment]
    catching_logs.__enter__ = _enter  # type: ignore[method-assign]
