"""Shows each trained step to what judges the policy, and is asked where hardly any group is valid any more."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

from ...config.options import AsyncDAPOConfig
from ...record import keys
from ...training.observer import Observer
from .policy_health import Figure, PolicyHealth

# What a policy that has collapsed shows beside a lack of valid groups.
FIGURES = (
    Figure(key=keys.K3_KL, name="k3 between engines and trainer", grows=100.0),
    Figure(key="actor/entropy", name="entropy", grows=3.0, shrinks=10.0),
    Figure(key="actor/grad_norm", name="gradient norm", grows=100.0),
    Figure(key="response_length/mean", name="mean response", grows=4.0, shrinks=4.0),
    Figure(key="response_length/clip_ratio", name="share of answers at the limit", grows=10.0),
)


class HealthWatch(Observer):
    """The observer that judges the policy by the steps of this life: a checkpoint holds nothing of it."""

    def __init__(self, options: AsyncDAPOConfig) -> None:
        self._health = PolicyHealth(FIGURES, rejected_share=keys.REJECTED_RATIO, skipped=keys.SKIPPED_UPDATE)

    def log(self, data: Mapping[str, Any], step: int) -> None:
        if keys.STEP_S in data:
            self._health.observe(step, {key: float(value) for key, value in data.items() if isinstance(value, Real)})

    def why_few_valid(self, valid_share: float) -> str | None:
        if (collapse := self._health.collapse(valid_share)) is None:
            return None
        return f"{collapse}; go on from a checkpoint before it, with a lower actor_rollout_ref.actor.optim.lr"
