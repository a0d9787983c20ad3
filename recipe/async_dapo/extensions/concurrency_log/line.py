"""What may be in flight next, and why: a line in the log for each step."""

import logging
from typing import TYPE_CHECKING

from transfer_queue import KVBatchMeta

from ...config.options import AsyncDAPOConfig
from ...rollout.manager import RoundRecord
from ...training.observer import Observer

if TYPE_CHECKING:  # which makes this
    from ...training.replay_buffer import RoundReplayBuffer
    from ...training.run_trainer import RunTrainer

logger = logging.getLogger(__name__)


class ConcurrencyLog(Observer):
    """The observer that writes this line."""

    _buffer: "RoundReplayBuffer"

    def __init__(self, options: AsyncDAPOConfig) -> None:
        self._options = options

    def training_begins(self, trainer: "RunTrainer") -> None:
        self._buffer = trainer.replay_buffer

    def batch_made(self, step: int, record: RoundRecord, batch: KVBatchMeta) -> None:
        balancer, limits = record.balancer, self._limits(record)
        least, learned = min(limits, key=limits.__getitem__), balancer.concurrency_state
        logger.info(
            f"step {step}: {balancer.inflight_max} in flight; next: at most {limits[least]} by {least} "
            f"({', '.join(f'{name} {most}' for name, most in limits.items())}; engines: {balancer.concurrency_reason}, "
            f"{learned.share:.2f} of the KV cache at {learned.context_tok:.0f} tokens a request, "
            f"steered {balancer.steered} times)"
        )

    def _limits(self, record: RoundRecord) -> dict[str, int]:
        """On trajectories in flight in the next round, by option name."""
        options, mix = self._options, self._buffer.mix
        limits: dict[str, int] = {}
        if options.rollout_pool_size is None:
            limits["max_concurrent_prompts"] = options.slots_hold
        elif options.fixed_pool_size is not None:
            limits["rollout_pool_size"] = options.fixed_pool_size
        elif (bound := self._buffer.round_size.staleness_bound(mix.over_sampling.valid_share)) is not None:
            limits["max_staleness"] = bound
        limits["engines"] = record.balancer.capacity
        is_capped = mix.over_sampling.surplus < mix.over_sampling.most_surplus
        held_by = "max_partial_share" if is_capped else "over_sampling_batch_size"
        limits[held_by] = mix.groups_to_hold * options.rollout_n
        return limits
