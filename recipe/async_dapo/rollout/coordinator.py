"""Early stopping coordinator: an actor that hands groups to workers, counts what ends, and stops the round.

    trainer --open_round/add_groups--> coordinator <--take_group/report_completion-- workers
                                           | stop rule met
                      +--------------------+---------------------+
                      v                    v                     v
              load balancer.stop     wait_stopped (workers)   next_event (trainer)
              -> all engines idle    -> cancel what runs      -> train

Everything awaits an event; nothing polls.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

import ray
from ray.actor import ActorHandle

from ..core.failures import EndedGroups
from ..core.leases import MAX_PENDING_CALLS
from ..core.mix import ALL
from ..core.outcome import GroupOutcome, Verdict
from ..core.over_sampling import AvailableGroups
from ..core.round import GroupEvent, Round, RoundSpec, RoundSummary
from ..core.round_groups import WaitingGroup
from ..core.users_errors import KnownPlaces
from ..runtime.logs import show_logs

logger = logging.getLogger(__name__)


class _OpenRound:
    """The open round: its groups, and the slots, workers and trainer that wait for something of it."""

    def __init__(self, state: Round, *, stops_engines: bool) -> None:
        self.state = state
        self.stops_engines = stops_engines
        self.tickets: dict[str, WaitingGroup] = {}
        self.stopped = asyncio.Event()
        self.engines_idle: asyncio.Future[float] | None = None
        self.changed = asyncio.Event()
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def next_start(self, worker: int) -> None:
        """Wait, in line, until this worker may start a group or nothing more will."""
        waiter = worker, asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter[1]
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            else:
                self.wake_waiter()  # it was woken in vain: another may start a group now
            raise

    def wake_waiter(self) -> None:
        """Wake one slot that may start a group. Each that gets one wakes the next: slots without work sleep on."""
        for worker, future in self._waiters:
            if not self.state.may_start:
                return
            if not future.done() and self.state.may_start_on(worker):  # else it has been cancelled just now
                self._waiters.remove((worker, future))
                future.set_result(None)
                return

    def notify(self) -> None:
        """Wake the trainer, and a slot that waits; the event is replaced, so that none misses the next one."""
        self.changed.set()
        self.changed = asyncio.Event()
        self.wake_waiter()
        if self.state.is_halted:
            self._wake_all()

    def release(self) -> None:
        """End all waits of a round that is over."""
        self.stopped.set()
        self.changed.set()
        self._wake_all()

    def _wake_all(self) -> None:
        while self._waiters:
            _, future = self._waiters.popleft()
            if not future.done():
                future.set_result(None)


class RoundEvent(StrEnum):
    NEEDS_PROMPTS = "needs_prompts"
    HAS_BATCH = "has_batch"  # of a round that goes on
    STOPPED = "stopped"


class EarlyStoppingCoordinator:
    """Hands the open round's groups to workers, counts how they end, and stops all engines when the stop rule is met.

    Args:
        balancer: the load balancer actor; its `stop` makes all engines idle.
        stop_timeout_s: longest time that may take [s]; None = no limit.
    """

    def __init__(self, balancer: ActorHandle, stop_timeout_s: float | None = None) -> None:
        self._balancer = balancer
        self._stop_timeout_s = stop_timeout_s
        self._round: _OpenRound | None = None
        self._logged = KnownPlaces()

    async def open_round(self, spec: RoundSpec, groups: Sequence[WaitingGroup]) -> None:
        """Start a round. What belongs to an earlier one is refused from now on."""
        earlier, self._round = self._round, _OpenRound(self._new_round(spec), stops_engines=not spec.validates)
        if earlier is not None:
            earlier.release()
        await self.add_groups(spec.round_id, groups)

    async def add_groups(self, round_id: str, groups: Sequence[WaitingGroup]) -> None:
        current = self._get(round_id)
        current.tickets.update((group.prompt_uid, group) for group in groups)
        current.state.add_groups(groups)
        self._after_change(current)

    async def take_group(self, round_id: str, worker: int) -> WaitingGroup | None:
        """The next group for a slot, as soon as there is one; None once nothing more will start in this round."""
        while (current := self._find(round_id)) is not None and not current.state.is_halted:
            uid = current.state.take(worker)
            if uid is not None:
                current.wake_waiter()
                return current.tickets.pop(uid)
            await current.next_start(worker)
        return None

    async def report_completion(self, round_id: str, outcome: GroupOutcome) -> None:
        """Record that a group has ended. A report of an old round changes nothing."""
        current = self._find(round_id)
        if current is None:
            logger.warning("late report of round %s ignored: %s", round_id, outcome.prompt_uid)
            return
        current.state.report(outcome)
        self._tell_cause(outcome)
        self._after_change(current)

    async def report_progress(self, round_id: str, events: Sequence[tuple[str, GroupEvent]]) -> None:
        """Note what happens in running groups (uid, event), over all data-parallel groups (the AggregatorActor of the
        partial rollout workflow). With a pool size, the next group may start once a trajectory has been generated, or
        is idle.
        """
        current = self._find(round_id)
        if current is not None:
            for prompt_uid, event in events:
                current.state.note(prompt_uid, event)
            current.wake_waiter()

    async def available(self, round_id: str) -> Mapping[str, AvailableGroups]:
        """Groups of each part that are valid or can still become so."""
        return self._get(round_id).state.available

    async def count_ended(self, round_id: str, part: str = ALL) -> EndedGroups:
        """How the groups of the round have ended so far, of all parts or of one."""
        current = self._find(round_id)
        return EndedGroups() if current is None else current.state.count_ended(part)

    async def should_stop_generation(self) -> bool:
        return self._round is None or self._round.stopped.is_set()

    async def wait_stopped(self, round_id: str) -> None:
        current = self._find(round_id)
        if current is not None:
            await current.stopped.wait()

    async def next_event(self, round_id: str) -> RoundEvent:
        """What the trainer has to act on next. `STOPPED` comes when all engines are idle."""
        current = self._get(round_id)
        while not current.stopped.is_set():
            if (event := self._event_of(current.state)) is not None:
                return event
            await current.changed.wait()
        if current.engines_idle is not None:
            await current.engines_idle
        return RoundEvent.STOPPED

    async def close_round(self, round_id: str) -> RoundSummary:
        """End the round after all workers have reported."""
        current = self._get(round_id)
        self._round = None
        latency_s = await current.engines_idle if current.engines_idle is not None else 0.0
        current.release()
        return replace(current.state.close(), stop_latency_s=latency_s)

    def _new_round(self, spec: RoundSpec) -> Round:
        return Round(spec)

    def _event_of(self, state: Round) -> RoundEvent | None:
        """What the trainer has to act on before the round stops."""
        return RoundEvent.NEEDS_PROMPTS if state.wants_prompts else None

    def _tell_cause(self, outcome: GroupOutcome) -> None:
        """Each place where user code fails, once in a run."""
        if outcome.verdict is not Verdict.FAILED or outcome.cause is None or not self._logged.is_new(outcome.cause):
            return
        logger.warning(
            "a prompt group failed, %s: %s; others that fail there are counted only (failed in the step's line)\n%s",
            outcome.reason,
            outcome.cause.summary,
            outcome.cause.traceback,
        )

    def _get(self, round_id: str) -> _OpenRound:
        current = self._find(round_id)
        assert current is not None, f"round {round_id} is not open"
        return current

    def _find(self, round_id: str) -> _OpenRound | None:
        current = self._round
        return current if current is not None and current.state.round_id == round_id else None

    def _after_change(self, current: _OpenRound) -> None:
        if current.state.is_stopped and not current.stopped.is_set():
            if current.stops_engines:
                current.engines_idle = asyncio.ensure_future(self._stop_engines())
            current.stopped.set()
        current.notify()

    async def _stop_engines(self) -> float:
        started = time.monotonic()
        async with asyncio.timeout(self._stop_timeout_s):
            await self._balancer.stop.remote()
        return time.monotonic() - started


class CoordinatorProcess(EarlyStoppingCoordinator):
    """The coordinator in a process of its own."""

    def __init__(self, balancer: ActorHandle, stop_timeout_s: float | None = None) -> None:
        show_logs()
        super().__init__(balancer, stop_timeout_s)


# One actor a run, created by the manager.
EarlyStoppingCoordinatorActor = ray.remote(num_cpus=0, max_concurrency=MAX_PENDING_CALLS)(CoordinatorProcess)
