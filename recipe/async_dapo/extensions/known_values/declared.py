"""Values that verl and torch know: the place where they plug in."""

from ...config.extensions import Declared

DECLARED = Declared(checks="all_checks.all_checks")
