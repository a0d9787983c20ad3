"""The record of a run: what it adds that is known before anything runs."""

from ...config.extensions import Declared

DECLARED = Declared(observer="wiring.recorder", wire="wiring.wire")
