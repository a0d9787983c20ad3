"""Whether the policy has collapsed: the place where that is noticed."""

from ...config.extensions import Declared

DECLARED = Declared(observer="watch.HealthWatch")
