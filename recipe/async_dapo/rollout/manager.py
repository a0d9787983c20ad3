"""Agent loop manager: opens rounds on the coordinator and the workers, and merges what they report."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import ray
import torch
from ray import ObjectRef
from ray.exceptions import RayError, RayTaskError
from tensordict import NonTensorData, NonTensorStack, TensorDict

from ..config.values import ConfigError
from ..core.concurrency import ConcurrencyState
from ..core.mix import ALL, Quota
from ..core.round import RoundSpec, RoundSummary
from ..core.summed import Summed
from ..core.trajectory import PromptGroup, Trajectory
from ..engines.load_balancer import LoadBalancerStats
from ..record.plain_values import DATA_SET, to_plain
from ..store import FIELDS
from .all_workers import RolloutError, still_running
from .codec import codec
from .coordinator import RoundEvent
from .group_rollout import WorkerReport
from .parking import park_interrupted, ticket_of
from .run_manager import RunManager

# Arguments of agent loops and reward managers beside a prompt's columns.
_ARGUMENTS = "self make agent_loop sampling_params priority prompt_len response_len tool_extra_fields __num_turns__"
TAKEN_NAMES = FIELDS.union(_ARGUMENTS.split())


def make_group(row: dict[str, Any], *, n: int, step: int) -> PromptGroup:
    """A fresh group of n trajectories for one row of verl's data set.

    Raises:
        ConfigError: naming a column that no checkpoint could hold, or whose name is taken.
    """
    prompt = codec().pack({key: value for key, value in row.items() if key not in ("uid", "validate")})
    if taken := sorted(TAKEN_NAMES & prompt.keys()):
        raise ConfigError(DATA_SET, taken, "columns with names that verl or this recipe uses; rename or drop them")
    plain = to_plain(prompt, source=DATA_SET)  # now rather than when a checkpoint is due
    return PromptGroup(
        uid=row["uid"],
        prompt=prompt | {"global_steps": step},
        drawn_at_step=step,
        key=blake2b(msgspec.msgpack.encode(plain), digest_size=8).hexdigest(),
        trajectories=[Trajectory(session_id=i) for i in range(n)],
    )


def prompt_rows(batch: TensorDict) -> list[dict[str, Any]]:
    """The rows of a verl batch as plain dicts."""
    rows: list[dict[str, Any]] = []
    for i in range(len(batch)):
        row: dict[str, Any] = {}
        for key, value in batch.items():
            if isinstance(value, NonTensorStack):
                row[key] = value[i].data
            elif isinstance(value, NonTensorData):
                row[key] = value.data
            elif isinstance(value, torch.Tensor | np.ndarray):
                row[key] = _alone(value[i])
            else:
                raise TypeError(f"data set column {key} arrives as {type(value).__name__}: not supported")
        rows.append(row)
    return rows


def _alone(item: Any) -> Any:
    """Without the batch that it is a view of: a tensor is pickled with all of what it views."""
    if isinstance(item, torch.Tensor):
        return item.clone()
    return item.copy() if isinstance(item, np.ndarray) else item


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord(Summed):
    """A closed round, or a part of one that goes on."""

    summary: RoundSummary
    workers: WorkerReport  # of all of them
    rollout_s: float
    balancer: LoadBalancerStats


class AsyncDAPOAgentLoopManager(RunManager):
    """Splits batches by prompt group over `num_workers` workers; the n trajectories of a group stay together."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._round_id = ""
        self._worker_refs: list[ObjectRef] = []
        self._capacity: int | None = None
        self._deadline: float | None = None  # of what the trainer waits for; None = it has not begun to
        self._look_at = 0.0  # when servers are asked for a sign of life again

    @property
    def capacity(self) -> int:
        """Requests that the engines may have in flight together [count]."""
        if self._capacity is None:
            self.open_engines()
        assert self._capacity is not None
        return self._capacity

    def open_round(self, spec: RoundSpec, groups: Sequence[PromptGroup]) -> None:
        """Start a round on all workers, without waiting."""
        assert not self._worker_refs, f"round {self._round_id} is still open"
        self._round_id = spec.round_id
        self._started = time.monotonic()
        self._deadline = None
        self._look_at = self._started + self._options.engine_timeout_s / 2
        suspended = frozenset(one.name for group in groups for one in group.suspensions())
        self._get(self._coordinator.open_round.remote(spec, [ticket_of(group) for group in groups]))
        self._worker_refs = [worker.run_round.remote(spec, suspended) for worker in self.agent_loop_workers]

    def add_groups(self, groups: Sequence[PromptGroup]) -> None:
        self.ask("add_groups", [ticket_of(group) for group in groups])

    def next_event(self) -> RoundEvent:
        """Wait for the coordinator.

        Raises:
            RolloutError: when a worker or an actor died, or `async_dapo.round_timeout_s` has passed.
        """
        event = self._coordinator.next_event.remote(self._round_id)
        if self._deadline is None:
            self._deadline = time.monotonic() + self._options.round_timeout_s
        pending = list(self._worker_refs)
        while True:
            now_s = time.monotonic()
            if now_s >= self._look_at:  # a server that hangs would be waited for until the end of the round
                self._balancer.look_after_servers.remote()
                self._look_at = now_s + self._options.engine_timeout_s / 2
            left_s = max(0.0, self._deadline - now_s)
            patience_s = max(0.0, min(left_s, self._look_at - now_s))
            ready, _ = ray.wait([event, *pending], num_returns=1, timeout=patience_s)
            if not ready and left_s:
                continue
            if not ready:
                raise RolloutError(
                    f"round {self._round_id} has not stopped within async_dapo.round_timeout_s="
                    f"{self._options.round_timeout_s}: {self._get(self._balancer.get_status.remote())}; "
                    f"{still_running(self.agent_loop_workers)}"
                )
            if ready[0] is event or ready[0] == event:
                return self._get(event)
            self._get(ready[0])  # a worker's round is over: raises its error if it has one
            pending.remove(ready[0])

    def ask(self, question: str, *about: Any) -> Any:
        """What the coordinator answers about the open round; `question` is a method of it."""
        return self._get(getattr(self._coordinator, question).remote(self._round_id, *about))

    def close_round(self) -> RoundRecord:
        """Collect all workers' reports after the stop.

        Raises:
            RolloutError: when a worker died, or has not reported within `AsyncDAPOConfig.stop_timeout_s`.
        """
        try:
            reports: list[WorkerReport] = self._get(self._worker_refs)
        except RolloutError as error:
            if not isinstance(error.__cause__, TimeoutError):
                raise
            remedy = "an agent loop must end when it is cancelled, so let it raise asyncio.CancelledError on"
            raise RolloutError(f"{error}: {still_running(self.agent_loop_workers)}; {remedy}") from error
        self._worker_refs = []
        workers = sum(reports, WorkerReport())
        summary: RoundSummary = self.ask("close_round")
        self._get(self._balancer.all_returned.remote())
        record = RoundRecord(
            summary=summary,
            workers=workers,
            rollout_s=time.monotonic() - self._started,
            balancer=self._get(self._balancer.take_stats.remote()),
        )
        if self._options.keeps_tokens:  # last: workers are busy with it
            for worker, report in zip(self.agent_loop_workers, reports, strict=True):
                park_interrupted(worker, report.unfinished)
        return record

    def open_engines(self, concurrency_state: ConcurrencyState | None = None) -> None:
        """Let the servers generate, under the weights they now have.

        Args:
            concurrency_state: of a checkpoint, to go on with.
        """
        self._capacity = self._get(self._balancer.open.remote(concurrency_state))

    def generate_sequences(self, prompts: TensorDict) -> None:
        """verl's entry for validation: run all prompts to their end on the same workers, without early stop."""
        rows = prompt_rows(prompts)
        step = int(rows[0]["global_steps"])
        n = self.config.actor_rollout_ref.rollout.val_kwargs.n
        self.open_round(
            RoundSpec(
                round_id=f"validation-{step}-{uuid4().hex[:8]}",
                stop_rule=None,
                parts={ALL: Quota(target_valid_groups=0, carried_valid_groups=0)},
                drains=True,
                pool_size=self._options.round_size().pool_size(self.capacity) or self._options.slots_hold,
            ),
            [make_group(row, n=n, step=step) for row in rows],
        )

    def _get(self, refs: Any) -> Any:
        try:
            return ray.get(refs, timeout=self._options.stop_timeout_s)
        except TimeoutError as error:
            raise RolloutError(
                f"round {self._round_id}: no answer within {self._options.stop_timeout_s:g} s, "
                "2.5 x async_dapo.engine_timeout_s"
            ) from error
        except RayError as error:
            if isinstance(error, RayTaskError) and isinstance(error.cause, ConfigError):
                raise error.cause from None
            raise RolloutError(f"round {self._round_id}: {error}") from error
