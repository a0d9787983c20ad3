"""Turns of an agent that go on from each other in one row: the place where they plug in."""

from ...config.extensions import Declared

DECLARED = Declared(stands_on="gateway", conversation="conversation.Chains")
