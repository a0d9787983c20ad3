"""The type in which weights travel: what it adds that is known before anything runs."""

from ...config.extensions import Declared

DECLARED = Declared(observer="choice.WireChoice")
