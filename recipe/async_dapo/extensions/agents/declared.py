"""Calls that are made once, and agent loops that outlive the stop: the places where they plug in."""

from ...config.extensions import Declared

DECLARED = Declared(
    loops="loops.of_worker",
    attachment="journal.from_bytes",
    observer="observer.CallsObserver",
    metrics=(
        "calls/replayed",
        "calls/carried",
        "calls/kept_loops",
        "calls/lost_loops",
        "calls/failed",
        "calls/failed_ratio",
        "calls/waiting_max",
        "turns/calls_s",
    ),
)
