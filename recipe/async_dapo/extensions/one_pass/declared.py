"""An update that computes pi_prox itself: the place where it plugs in."""

from ...config.extensions import Declared

DECLARED = Declared(passes="passes.OnePass")
