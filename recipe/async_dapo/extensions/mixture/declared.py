"""Mixtures of the versions in a prompt's group: what they add that is known before anything runs."""

from ...config.extensions import Declared
from ...config.values import ImportanceSampling, Rule

_MIXTURE = "async_dapo.importance_sampling=mixture "
_METRICS = ("scored_trajectories", "token_share", "unknown_share", "snapshot_bytes")

# fmt: off
DECLARED = Declared(
    passes="passes.MixturePasses",
    metrics=tuple(f"mixture/{name}" for name in _METRICS),
    rules=(
        Rule("async_dapo.max_staleness",
             lambda it: it.corrects(ImportanceSampling.MIXTURE) and it.options.max_staleness is None,
             _MIXTURE + "keeps the weights of so many versions; set a number, such as 4"),
        Rule("actor_rollout_ref.actor.strategy",
             lambda it: it.corrects(ImportanceSampling.MIXTURE) and it.actor.strategy != "fsdp2",
             _MIXTURE + "exchanges FSDP2's weights; use fsdp2, or decoupled"),
    ),
)
# fmt: on
