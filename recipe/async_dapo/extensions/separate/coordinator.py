"""The coordinator of rounds that go on while the trainer trains: it hands their batches over."""

from typing import Any

import ray

from ...core.leases import MAX_PENDING_CALLS
from ...core.round import Round, RoundSpec, RoundSummary
from ...rollout.coordinator import CoordinatorProcess, EarlyStoppingCoordinator, RoundEvent
from .rolling_round import RollingRound, RollingSpec


class RollingCoordinator(EarlyStoppingCoordinator):
    """A coordinator whose training rounds hand over a batch for each step, and stop when they are told to."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._oldest_version = 0  # that a token sampled from now on may have

    async def hand_over(self, round_id: str) -> RoundSummary | None:
        """The next batch of a round that goes on, and all that has ended since the one before. None if there is no
        batch any more: a group has begun meanwhile that has to be among them."""
        if not self._get_rolling(round_id).has_batch:
            return None
        return self._get_rolling(round_id).hand_over()

    async def resize(self, round_id: str, spec: RollingSpec) -> None:
        """How much the open round may have under way from now on."""
        self._get_rolling(round_id).resize(spec)
        self._get(round_id).notify()

    async def stop_round(self, round_id: str) -> None:
        """Stop a round that would go on."""
        self._get_rolling(round_id).stop()
        self._after_change(self._get(round_id))

    async def note_versions(self, oldest: int, newest: int) -> None:
        """The load balancer: whatever is sampled from now on has no older version; the trainer's newest weights."""
        self._oldest_version = max(self._oldest_version, oldest)
        if self._round is not None and isinstance(self._round.state, RollingRound):
            self._round.state.note_versions(oldest=oldest, newest=newest)
            self._round.notify()

    def _new_round(self, spec: RoundSpec) -> Round:
        if isinstance(spec, RollingSpec):
            return RollingRound(spec, oldest_version=self._oldest_version)
        return super()._new_round(spec)

    def _event_of(self, state: Round) -> RoundEvent | None:
        if isinstance(state, RollingRound) and state.has_batch:
            return RoundEvent.HAS_BATCH
        return super()._event_of(state)

    def _get_rolling(self, round_id: str) -> RollingRound:
        state = self._get(round_id).state
        assert isinstance(state, RollingRound), f"round {round_id} hands nothing over"
        return state


class RollingCoordinatorProcess(CoordinatorProcess, RollingCoordinator):
    """The coordinator in a process of its own."""


RollingCoordinatorActor = ray.remote(num_cpus=0, max_concurrency=MAX_PENDING_CALLS)(RollingCoordinatorProcess)
