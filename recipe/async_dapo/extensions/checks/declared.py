"""Further checks of a run before it starts, in places that are known before anything runs."""

from ...config.extensions import Declared
from .rows import ROWS

DECLARED = Declared(rules=ROWS, checks="all_checks.all_checks")
