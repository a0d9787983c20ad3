"""How many tokens a step of an engine yields of a response, as a metric of each step."""

from ...config.options import AsyncDAPOConfig
from ...core.staleness import VersionShares
from ...rollout.manager import RoundRecord
from ...training.observer import Observer


class DraftMeter(Observer):
    """Every response that decodes in a step gets a token, and those of its draft that are accepted."""

    def __init__(self, options: AsyncDAPOConfig) -> None:
        pass

    def closed(self, record: RoundRecord, versions: VersionShares) -> dict[str, float]:
        loads = record.balancer.loads.values()
        if not any(load.drafted_tok for load in loads):
            return {}
        generated, accepted = sum(load.generated_tok for load in loads), sum(load.accepted_tok for load in loads)
        steps = generated - accepted
        return {"drafts/tok_per_step": generated / steps if steps else 0.0}
