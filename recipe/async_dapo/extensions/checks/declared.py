"""Checks of a run that try what its options name, and the command that runs them all: where they plug in."""

from ...config.extensions import Declared

DECLARED = Declared(checks="all_checks.all_checks", command="command.run")
