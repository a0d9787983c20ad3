"""One rollout round in virtual time: the production round, lanes, leases and stop rule, driven as the shells drive them.

    coordinator.py     take_group, report_completion, stop  -> `_fill_lanes`, `_report`, `_stop`
    worker.py          lanes; one group per lane            -> `_fill_lanes`, `_start_group`
    group_rollout.py   n trajectories, reward, verdict      -> `_start`, `_on_generated`, `_on_scored`
    engine_requests.py leases, attachments                  -> `fleet.py`
    replay_buffer.py   draws prompts when asked             -> `draw`
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from ..config import AsyncDAPOConfig
from ..core.group_filter import judge_group
from ..core.pool import Dispatch
from ..core.round import Round, RoundSummary
from ..core.stop_rules import make_stop_rule
from ..core.trajectory import Attachment, GroupOutcome, PromptGroup, Segment, Trajectory, Turn, Verdict
from .clock import VirtualClock
from .engine import Request
from .fleet import Fleet
from .systems import Habits, Refill
from .workload import ANSWERS

_lease_numbers = count()


class RoundStuck(AssertionError):
    """Nothing can happen any more, and the round has not stopped."""


@dataclass(slots=True)
class SimulatedRound:
    """What the production shells would report after the round, and what only a simulation knows."""

    summary: RoundSummary
    unfinished: list[PromptGroup] = field(default_factory=list)
    rollout_s: float = 0.0
    events: int = 0
    reprefilled_tok: int = 0


@dataclass(slots=True)
class _Out:
    """A trajectory whose request is out."""

    group: PromptGroup
    trajectory: Trajectory
    lease_id: str
    is_set_aside: bool  # will have had its tokens of this round when the request ends


class RoundSimulation:
    """Args:
    draw: draws that many prompts and dispatches them, as the replay buffer does.
    on_valid: told every group that is stored for training, before its tokens leave it.
    prompt_len_tok: of every prompt [tokens].
    reward_s: from the end of a trajectory to its reward [s].
    """

    def __init__(
        self,
        fleet: Fleet,
        options: AsyncDAPOConfig,
        habits: Habits,
        *,
        step: int,
        draw: Callable[[int], Sequence[PromptGroup]],
        on_valid: Callable[[PromptGroup], None],
        prompt_len_tok: int,
        reward_s: float,
    ) -> None:
        self._fleet = fleet
        self._options = options
        self._habits = habits
        self._step = step
        self._draw = draw
        self._on_valid = on_valid
        self._prompt_len_tok = prompt_len_tok
        self._reward_s = reward_s
        self._clock = VirtualClock()
        self._groups: dict[str, PromptGroup] = {}
        self._worker_of: dict[str, int] = {}
        self._open: dict[str, int] = {}  # group -> trajectories that have not come to rest in this round
        self._free_lanes = [options.lanes_per_worker] * options.num_workers
        self._unfinished: list[PromptGroup] = []
        self._filtered = 0
        self._refilled = 0
        self._reprefilled_tok = 0
        self._stopped = False

    def run(self, dispatch: Dispatch, *, carried_valid_groups: int) -> SimulatedRound:
        """From the opening of the round to idle engines."""
        options = self._options
        self._round = Round(
            f"step-{self._step}",
            rule=make_stop_rule(
                options.stop_rule,
                target_valid_groups=options.target_valid_groups,
                carried_valid_groups=carried_valid_groups,
            ),
            target_valid_groups=options.target_valid_groups,
            carried_valid_groups=carried_valid_groups,
            num_workers=options.num_workers,
            drains=options.drains,
            must_finish=dispatch.must_finish,
            pool_size=options.rollout_pool_size,
        )
        self._fleet.open(self._clock, self._on_generated)
        self._add(dispatch.groups)
        if self._habits.poll_s:
            self._clock.at(0.0, self._look)
        while not self._stopped:
            if not self._clock.step():
                raise RoundStuck(f"round {self._step}: {self._round.num_running} groups run, nothing is planned")
        return SimulatedRound(
            summary=self._round.close(),
            unfinished=self._unfinished,
            rollout_s=self._clock.now_s,
            events=self._clock.events,
            reprefilled_tok=self._reprefilled_tok,
        )

    # ---- the coordinator and the trainer ----

    def _add(self, groups: Sequence[PromptGroup]) -> None:
        self._groups.update((group.uid, group) for group in groups)
        self._round.add_groups({group.uid: len(group.unfinished) for group in groups})
        self._after_change()

    def _after_change(self) -> None:
        if self._round.stop_reason is None:
            self._fill_lanes()
        if not self._habits.poll_s:
            self._act()

    def _act(self) -> None:
        """What the trainer does when it sees the state of the round."""
        if self._round.stop_reason is not None:
            self._stop()
        else:
            missing = self._prompts_to_draw()
            if missing:
                self._add(self._draw(missing))

    def _look(self) -> None:
        self._act()
        if not self._stopped:
            self._clock.at(self._clock.now_s + self._habits.poll_s, self._look)

    def _prompts_to_draw(self) -> int:
        batch = self._options.over_sampling_batch_size
        match self._habits.refill:
            case Refill.ON_DEMAND:
                return batch if self._round.wants_prompts else 0
            case Refill.NEXT_BATCH:
                return 0 if self._round.num_running or self._round.num_waiting else batch
        wanted = self._habits.refill_factor * self._filtered - self._refilled
        if self._habits.max_inflight_batches is not None:
            limit = self._habits.max_inflight_batches * self._options.target_valid_groups
            wanted = min(wanted, limit - self._round.num_running - self._round.num_waiting)
        wanted = 0 if self._round.is_halted else max(0, wanted)
        self._refilled += wanted
        return wanted

    def _stop(self) -> None:
        """All engines stop; what has been generated comes back, to be kept or not."""
        if self._stopped:
            return
        self._stopped = True
        keep = self._options.keeps_kv
        for request in self._fleet.stop(keep=keep):
            out: _Out = request.owner
            self._record(out.trajectory, request)
            server_id = self._fleet.leases.server_of(out.lease_id)
            if server_id is None:
                continue
            if keep:
                out.trajectory.turns[-1].attachment = Attachment(server_id=server_id, lease_id=out.lease_id)
                self._fleet.frozen[out.lease_id] = request
            else:
                self._fleet.release(out.lease_id)
        self._unfinished += [self._groups[uid] for uid, count in self._open.items() if count]

    # ---- workers ----

    def _fill_lanes(self) -> None:
        progress = True
        while progress and self._round.num_waiting:
            progress = False
            for worker, free in enumerate(self._free_lanes):
                if free and (uid := self._round.take(worker)) is not None:
                    progress = True
                    self._free_lanes[worker] -= 1
                    self._worker_of[uid] = worker
                    self._start_group(self._groups[uid])

    def _start_group(self, group: PromptGroup) -> None:
        unfinished = group.unfinished
        self._open[group.uid] = len(unfinished)
        delay_s = self._habits.resume_delay_s if group.has_started else 0.0
        for trajectory in unfinished:
            if delay_s:
                self._clock.at(self._clock.now_s + delay_s, partial(self._start, group, trajectory))
            else:
                self._start(group, trajectory)

    def _start(self, group: PromptGroup, trajectory: Trajectory) -> None:
        if self._stopped:
            return
        if not trajectory.turns:
            trajectory.turns.append(Turn(prompt_digest=b"", prompt_len_tok=self._prompt_len_tok))
        turn = trajectory.turns[0]
        if turn.attachment is not None:
            self._reattach(group, trajectory, turn)
            return
        done_tok = turn.generated_tok
        left_tok = group.prompt[ANSWERS].response_lens_tok[trajectory.session_id] - done_tok
        if left_tok == 0:
            self._after_generation(group, trajectory)
            return
        limit_tok = self._options.max_tokens_per_round
        now_tok = left_tok if limit_tok is None else min(left_tok, limit_tok)
        out = _Out(group, trajectory, f"lease-{next(_lease_numbers)}", is_set_aside=now_tok < left_tok)
        context_tok = self._prompt_len_tok + done_tok
        self._reprefilled_tok += context_tok if done_tok else 0
        self._fleet.send(
            out.lease_id,
            Request(owner=out, context_tok=context_tok, remaining_tok=now_tok, prefill_tok=context_tok),
        )

    def _reattach(self, group: PromptGroup, trajectory: Trajectory, turn: Turn) -> None:
        """Go on with the request that was left in its engine; it may have ended since the engines opened."""
        assert turn.attachment is not None
        lease_id = turn.attachment.lease_id
        turn.attachment = None
        request = self._fleet.frozen.pop(lease_id)
        request.owner = _Out(group, trajectory, lease_id, is_set_aside=False)
        if request.remaining_tok == 0:
            self._on_generated(request)

    def _on_generated(self, request: Request) -> None:
        out: _Out = request.owner
        self._record(out.trajectory, request)
        if out.lease_id in self._fleet.frozen:
            return  # its group has not been taken yet: `_reattach` will find it
        self._fleet.release(out.lease_id)
        if out.is_set_aside:
            self._come_to_rest(out.group)
        else:
            self._after_generation(out.group, out.trajectory)

    def _after_generation(self, group: PromptGroup, trajectory: Trajectory) -> None:
        self._round.end_trajectory(group.uid)
        if self._round.has_free_places:
            self._fill_lanes()
        if self._reward_s:
            self._clock.at(self._clock.now_s + self._reward_s, partial(self._on_scored, group, trajectory))
        else:
            self._on_scored(group, trajectory)

    def _on_scored(self, group: PromptGroup, trajectory: Trajectory) -> None:
        if self._stopped:
            return
        trajectory.finish(True)
        self._come_to_rest(group)

    def _come_to_rest(self, group: PromptGroup) -> None:
        """One trajectory less; the last of a group decides what becomes of it."""
        self._open[group.uid] -= 1
        if self._open[group.uid]:
            return
        if group.unfinished:
            self._unfinished.append(group)
            outcome = GroupOutcome.of(group, Verdict.SET_ASIDE)
        else:
            outcome = GroupOutcome.of(group, self._judge(group))
        if outcome.verdict is Verdict.VALID:
            self._on_valid(group)
        self._filtered += outcome.verdict is Verdict.FILTERED
        self._free_lanes[self._worker_of[group.uid]] += 1
        self._round.report(outcome)
        self._after_change()

    def _judge(self, group: PromptGroup) -> Verdict:
        if self._options.filter.metric is None:
            return Verdict.VALID
        return judge_group(group.prompt[ANSWERS].metrics)

    def _record(self, trajectory: Trajectory, request: Request) -> None:
        """Add what a request has brought, as tokens of the policy version that the engines have in this step."""
        new_tok = request.deliver()
        if new_tok:
            tokens = range(new_tok)
            trajectory.turns[0].segments.append(
                Segment(policy_version=self._step - 1, token_ids=tokens, rollout_log_probs=tokens)
            )
