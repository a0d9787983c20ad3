"""The meter of length bias: what it adds that is known before anything runs."""

from ...config.extensions import Declared

DECLARED = Declared(
    observer="meter.LengthBias",
    metrics=(
        "length/trained/mean",
        "length/dispatched/mean",
        "length/dispatched/p50",
        "length/dispatched/p90",
        "length/trained_to_dispatched",
    ),
)
