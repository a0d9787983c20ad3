"""Prompt groups on virtual servers: what `group_rollout.py`, `client.py` and `engine_requests.py` do.

start(group) -> n requests -> lease -> engine -> tokens recorded -> reward -> the last of n: verdict -> on_end
                                 |
                   stop: tokens so far recorded
"""

from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Protocol

from ...async_dapo.config.options import AsyncDAPOConfig
from ...async_dapo.core.outcome import GroupOutcome, Verdict, is_certain, judge_group
from ...async_dapo.core.round import GroupEvent
from ...async_dapo.core.trajectory import PromptGroup, Segment, Trajectory, Turn
from .engine import Request
from .fleet import Fleet, VirtualClock
from .scenario import Scenario
from .workload import ANSWERS, Answers


@dataclass(slots=True)
class _Out:
    """A trajectory whose request is out."""

    group: PromptGroup
    trajectory: Trajectory
    lease_id: str


class RoundEnds(Protocol):
    """What is told what becomes of groups."""

    def on_event(self, uid: str, event: GroupEvent) -> None:
        """Something has happened in a group that runs."""

    def on_end(self, group: PromptGroup, outcome: GroupOutcome) -> None:
        """Its last trajectory has come to rest."""


class GroupSimulation:
    """The groups that run in one round.

    Args:
        resume_delay_s: until a continued trajectory is sent [s].
        policy_version: of the engines' weights in this round.
    """

    def __init__(
        self,
        fleet: Fleet,
        clock: VirtualClock,
        options: AsyncDAPOConfig,
        scenario: Scenario,
        *,
        resume_delay_s: float,
        policy_version: int,
        listener: RoundEnds,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._options = options
        self._scenario = scenario
        self._resume_delay_s = resume_delay_s
        self._again = 1.0 if options.host_kv_gib is None else scenario.copy_share  # prefill of continued requests
        self._policy_version = policy_version
        self._listener = listener
        self._running: dict[str, tuple[PromptGroup, int]] = {}  # with the trajectories that have not come to rest
        self._is_stopped = False
        self.reprefilled_tok = 0
        fleet.open(clock, self._receive)

    def start(self, group: PromptGroup) -> None:
        self._running[group.uid] = (group, len(group.unfinished))
        delay_s = self._resume_delay_s if group.has_started else 0.0
        for trajectory in group.unfinished:
            if delay_s:
                self._clock.at(self._clock.now_s + delay_s, partial(self._send, group, trajectory))
            else:
                self._send(group, trajectory)

    def stop(self) -> list[PromptGroup]:
        """Stop all engines. Returns the groups that were running, with what they have generated."""
        self._is_stopped = True
        for request in self._fleet.stop():
            out: _Out = request.owner
            self._record(request)
            if self._fleet.leases.server_of(out.lease_id) is not None:
                self._fleet.release(out.lease_id)
        return [group for group, _ in self._running.values()]

    def _send(self, group: PromptGroup, trajectory: Trajectory) -> None:
        if self._is_stopped:
            return
        if not trajectory.turns:
            trajectory.turns.append(Turn(prompt_digest=b"", prompt_len_tok=self._scenario.prompt_len_tok))
        turn = trajectory.turns[0]
        done_tok = turn.generated_tok
        answers: Answers = group.prompt[ANSWERS]
        left_tok = answers.response_lens_tok[trajectory.session_id] - done_tok
        if left_tok == 0:  # it was waiting for its reward when the last round stopped
            self._after_generation(group, trajectory)
            return
        prefill_tok = context_tok = self._scenario.prompt_len_tok + done_tok
        if done_tok:
            self.reprefilled_tok += context_tok
            prefill_tok = ceil(self._again * context_tok)
        out = _Out(group, trajectory, self._fleet.new_lease_id())
        self._fleet.send(
            out.lease_id,
            Request(owner=out, context_tok=context_tok, remaining_tok=left_tok, prefill_tok=prefill_tok),
        )

    def _receive(self, request: Request) -> None:
        """A request has got its tokens."""
        out: _Out = request.owner
        self._record(request)
        self._fleet.release(out.lease_id)
        self._after_generation(out.group, out.trajectory)

    def _after_generation(self, group: PromptGroup, trajectory: Trajectory) -> None:
        self._listener.on_event(group.uid, GroupEvent.GENERATED)
        if self._scenario.reward_s:
            self._clock.at(self._clock.now_s + self._scenario.reward_s, partial(self._score, group, trajectory))
        else:
            self._score(group, trajectory)

    def _score(self, group: PromptGroup, trajectory: Trajectory) -> None:
        if self._is_stopped:
            return
        trajectory.finish(True)
        self._note_metrics(group)
        self._come_to_rest(group)

    def _come_to_rest(self, group: PromptGroup) -> None:
        """One trajectory less; the last of a group decides what becomes of it."""
        still_open = self._running[group.uid][1] - 1
        if still_open:
            self._running[group.uid] = (group, still_open)
            return
        del self._running[group.uid]
        self._listener.on_end(group, self._judge(group))

    def _note_metrics(self, group: PromptGroup) -> None:
        if self._options.filter.metric is None or group.is_certain or not group.unfinished:
            return
        metrics = group.prompt[ANSWERS].metrics
        if is_certain(metrics[one.session_id] for one in group.trajectories if one.is_finished):
            group.is_certain = True
            self._listener.on_event(group.uid, GroupEvent.CERTAIN)

    def _judge(self, group: PromptGroup) -> GroupOutcome:
        if self._options.filter.metric is None:
            return GroupOutcome.of(group, Verdict.VALID)
        metrics = group.prompt[ANSWERS].metrics
        return GroupOutcome.of(group, judge_group(metrics))

    def _record(self, request: Request) -> None:
        """Add what a request has brought since it was last asked."""
        new_tok = request.deliver()
        if new_tok:
            out: _Out = request.owner
            tokens = range(new_tok)
            out.trajectory.turns[0].segments.append(
                Segment(policy_version=self._policy_version, token_ids=tokens, rollout_log_probs=tokens)
            )
