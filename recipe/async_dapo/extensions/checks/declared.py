"""Checks of a run that try what its options name, in places that are known before anything runs."""

from ...config.extensions import Declared

DECLARED = Declared(checks="all_checks.all_checks")
