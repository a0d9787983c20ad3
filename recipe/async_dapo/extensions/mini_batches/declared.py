"""Balanced mini-batches, and trajectories of several rows: the places where they plug in."""

from ...config.extensions import Declared

DECLARED = Declared(passes="passes.RowPasses", step_updates="step_updates.BalancedUpdates")
