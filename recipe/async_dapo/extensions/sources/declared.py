"""Accounts of data sources: what they add that is known before anything runs. Metrics are named after the sources."""

from ...config.extensions import Declared

DECLARED = Declared(observer="observer.SourceObserver")
