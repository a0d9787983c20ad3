"""Shipping: what it adds that is known before anything runs."""

from ...config.extensions import Declared

DECLARED = Declared(shipping="staging.SHIPPING")
