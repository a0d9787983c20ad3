"""The recipe's own log lines, in every process that has some, and how far the start-up has come."""

import logging
import os
import time

# When the run was started [s since the epoch]; reaches all processes, see `shipping.ENVIRONMENT`.
STARTED_VARIABLE = "ASYNC_DAPO_STARTED_S"

logger = logging.getLogger(__name__)


class _BareInfo(logging.Formatter):
    """What goes well is told as it is; what does not, with its level and time."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.levelno <= logging.INFO else f"{record.levelname}:{self.formatTime(record)}:{text}"


def show_logs() -> None:
    """Show what the recipe logs from INFO on, like verl's own lines; importing vLLM silences all others below ERROR."""
    handler = logging.StreamHandler()
    handler.setFormatter(_BareInfo("%(message)s"))
    package_logger = logging.getLogger(__package__)
    package_logger.handlers = [handler]
    package_logger.setLevel(logging.INFO)
    package_logger.propagate = False


def note_start() -> None:
    """Phases are timed from now on, unless this process was started by one that has noted it already."""
    os.environ.setdefault(STARTED_VARIABLE, repr(time.time()))


def log_phase(text: str) -> None:
    """One line of the start-up, with the seconds since the run was started: `[58 s] engine 3 of 8`."""
    logger.info("[%.0f s] %s", max(0.0, time.time() - started_s()), text)


def started_s() -> float:
    """When the run was started [s since the epoch]; now, where nobody noted it."""
    return float(os.environ.get(STARTED_VARIABLE, time.time()))
