"""Calls that are made once, and agent loops that outlive the stop: the place where they plug in."""

from ...config.extensions import Declared

DECLARED = Declared(loops="loops.of_worker", checks="tried_calls.with_checks")
