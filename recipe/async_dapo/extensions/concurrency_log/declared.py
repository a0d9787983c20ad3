"""The line on what may be in flight: the place where it plugs in."""

from ...config.extensions import Declared

DECLARED = Declared(observer="line.ConcurrencyLog")
