"""Agents that speak an API: what they add that is known before anything runs."""

from ...config.extensions import Declared

METRICS = (
    "gateway/sessions",
    "gateway/failed_sessions",
    "gateway/zero_sessions",
    "gateway/rows",
    "gateway/new_chains",
    "gateway/requests",
    "gateway/resent",
    "gateway/refused",
    "gateway/errors",
    "gateway/sampled_tokens",
    "gateway/trained_tokens",
    "gateway/context_only_tokens",
    "gateway/rolled_back_tokens",
    "gateway/unanswered_tokens",
)
DECLARED = Declared(stands_on="agents", metrics=METRICS)
