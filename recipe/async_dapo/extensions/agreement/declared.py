"""Engines and trainer compute the same log-probs: the place where that is judged."""

from ...config.extensions import Declared

DECLARED = Declared(passes="passes.JudgedPasses")
