"""One rollout round in virtual time: the production round, slots and stop rule, driven as the shells drive them.

coordinator.py    take_group, report_completion, stop -> `_fill_slots`, `on_end`, `_stop`
worker.py         slots, one group per slot           -> `_fill_slots`
group_rollout.py  trajectories, reward, verdict       -> `group_simulation.py`
load_balancer.py  leases, engines                     -> `fleet.py`
replay_buffer.py  waits for the stop, draws prompts   -> `_act`
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...async_dapo.config.options import AsyncDAPOConfig
from ...async_dapo.config.values import ConfigError
from ...async_dapo.core.mix import ALL, Mix
from ...async_dapo.core.outcome import GroupOutcome, Verdict
from ...async_dapo.core.pool import training_order
from ...async_dapo.core.round import GroupEvent, Round, RoundSpec, RoundSummary
from ...async_dapo.core.round_groups import WaitingGroup
from ...async_dapo.core.stop_rules import StopRuleName
from ...async_dapo.core.trajectory import PromptGroup
from .fleet import Fleet, VirtualClock
from .group_simulation import GroupSimulation
from .scenario import Scenario
from .systems import UNBOUNDED, Habits, Refill


class RoundStuck(AssertionError):
    """Nothing can happen any more, and the round has not stopped."""


@dataclass(slots=True, kw_only=True)
class SimulatedRound:
    """What the production shells report after a round."""

    summary: RoundSummary
    unfinished: list[PromptGroup]
    rollout_s: float
    reprefilled_tok: int


class RoundSimulation:
    """One round on a virtual clock: the production `Round`, with simulated workers, groups and servers.

    Args:
        step: trains policy version `step - 1`, which the engines have.
        spec: the round to open.
        since_stop_s: from the stop of the last round to the opening of this one [s].
        scenario: has the lengths of prompts and the seconds beside generation.
        mix: says how many to draw when the available ones are not expected to reach B.
        draw: draws that many prompts of each part of the mix and dispatches them.
        on_valid: told every group that is stored for training, while it still has its tokens.
    """

    def __init__(
        self,
        fleet: Fleet,
        options: AsyncDAPOConfig,
        habits: Habits,
        *,
        step: int,
        spec: RoundSpec,
        since_stop_s: float,
        scenario: Scenario,
        mix: Mix,
        draw: Callable[[Mapping[str, int]], Sequence[PromptGroup]],
        on_valid: Callable[[PromptGroup], None],
    ) -> None:
        self._options = options
        self._mix = mix
        self._habits = habits
        self._step = step
        self._draw = draw
        self._on_valid = on_valid
        self._clock = VirtualClock()
        self._round = Round(spec)
        self._fleet = fleet
        self._running = GroupSimulation(
            fleet,
            self._clock,
            options,
            scenario,
            resume_delay_s=max(0.0, habits.resume_delay_s - since_stop_s),
            policy_version=step - 1,
            listener=self,
        )
        self._groups: dict[str, PromptGroup] = {}  # waiting
        self._free_slots = [options.slots_per_worker or UNBOUNDED] * options.num_workers
        self._worker_of: dict[str, int] = {}
        self._unfinished: list[PromptGroup] = []
        self._is_stopped = False
        self._is_filling = False
        self._gen_batches: Counter[str] = Counter()  # by part, beside those that the round opens with
        self._filtered = 0
        self._refilled = 0

    def run(self, groups: Sequence[PromptGroup]) -> SimulatedRound:
        """From the opening of the round to its stop.

        Raises:
            ConfigError: when the round draws more batches than `algorithm.filter_groups.max_num_gen_batches`.
        """
        self._add(groups)
        if self._habits.poll_s:
            self._clock.at(0.0, self._look)
        while not self._is_stopped:
            if not self._clock.step():
                raise RoundStuck(f"round {self._step}: {self._round.num_running} groups run, nothing is planned")
        return SimulatedRound(
            summary=self._round.close(),
            unfinished=self._unfinished,
            rollout_s=self._clock.now_s,
            reprefilled_tok=self._running.reprefilled_tok,
        )

    # ---- the trainer ----

    def _look(self) -> None:
        """A trainer that polls."""
        self._act()
        if not self._is_stopped:
            self._clock.at(self._clock.now_s + self._habits.poll_s, self._look)

    def _act(self) -> None:
        if self._is_stopped:
            return
        if self._round.is_stopped:
            self._stop()
        elif missing := self._prompts_to_draw():
            for part, count in missing.items():
                self._check_batches(part)
                self._gen_batches[part] += count
            self._add(self._draw(missing))

    def _check_batches(self, part: str) -> None:
        limit, unit = self._options.filter.max_num_gen_batches, self._mix.batch_unit(part)
        if self._habits.refill is Refill.ON_DEMAND and limit and unit + self._gen_batches[part] >= limit * unit:
            raise ConfigError(
                "algorithm.filter_groups.max_num_gen_batches",
                limit,
                f"training would end in step {self._step}: {limit} batches of {unit} prompts"
                f"{f' of {part!r}' if part else ''} do not give enough valid groups for "
                f"data.train_batch_size={self._options.target_valid_groups}; raise it",
            )

    def _prompts_to_draw(self) -> dict[str, int]:
        if self._habits.refill is Refill.ON_DEMAND:
            return self._mix.to_draw(self._round.available) if self._round.wants_prompts else {}
        return {ALL: count} if (count := self._count_to_draw()) else {}

    def _count_to_draw(self) -> int:
        if self._habits.refill is Refill.NEXT_BATCH:
            return 0 if self._round.num_running or self._round.num_waiting else self._mix.batch_unit(ALL)
        wanted = self._habits.refill_factor * self._filtered - self._refilled
        if self._habits.max_inflight_batches is not None:
            limit = self._habits.max_inflight_batches * self._options.target_valid_groups
            wanted = min(wanted, limit - self._round.num_running - self._round.num_waiting)
        wanted = 0 if self._round.is_halted else max(0, wanted)
        self._refilled += wanted
        return wanted

    def _add(self, groups: Sequence[PromptGroup]) -> None:
        self._groups.update((group.uid, group) for group in groups)
        self._round.add_groups([self._waiting(group) for group in groups])
        self._after_change()

    def _waiting(self, group: PromptGroup) -> WaitingGroup:
        return WaitingGroup(
            prompt_uid=group.uid,
            unfinished=len(group.unfinished),
            is_certain=group.is_certain,
            has_begun=group.has_started,
            source=group.source,
        )

    def _stop(self) -> None:
        self._is_stopped = True
        self._unfinished = self._running.stop()

    # ---- the coordinator and the workers ----

    def _after_change(self) -> None:
        self._fill_slots()
        if not self._habits.poll_s:
            self._act()

    def _fill_slots(self) -> None:
        """A group that starts may make room at once; the loop that started it sees that, and nothing is nested."""
        if self._is_filling:
            return
        self._is_filling = True
        started = True
        while started and self._round.num_waiting:
            started = False
            for worker, free in enumerate(self._free_slots):
                if free and (uid := self._round.take(worker)) is not None:
                    started = True
                    self._free_slots[worker] -= 1
                    self._worker_of[uid] = worker
                    self._running.start(self._groups.pop(uid))
        self._is_filling = False

    def on_event(self, uid: str, event: GroupEvent) -> None:
        self._round.note(uid, event)
        if self._round.may_start:
            self._fill_slots()

    def on_end(self, group: PromptGroup, outcome: GroupOutcome) -> None:
        if outcome.verdict is Verdict.VALID:
            self._on_valid(group)
        self._filtered += outcome.verdict is Verdict.FILTERED
        self._free_slots[self._worker_of.pop(group.uid)] += 1
        self._round.report(outcome)
        self._after_change()


def take_losses(simulated: SimulatedRound, habits: Habits, *, missing: int, stop_rule: StopRuleName) -> int:
    """Take out of a round what another system throws away and this recipe keeps. Returns its tokens."""
    summary, lost_tok = simulated.summary, 0
    if habits.drops_surplus:
        surplus = {outcome.prompt_uid for outcome in training_order(summary, stop_rule)[missing:]}
        dropped = [outcome for outcome in summary.outcomes if outcome.prompt_uid in surplus]
        kept = [outcome for outcome in summary.outcomes if outcome.prompt_uid not in surplus]
        failed = [replace(outcome, verdict=Verdict.FAILED, reason="surplus") for outcome in dropped]
        summary = replace(summary, outcomes=(*kept, *failed))
        lost_tok += sum(sum(outcome.response_lens_tok) for outcome in dropped)
    if habits.drops_interrupted:
        interrupted = [GroupOutcome.of(group, Verdict.FAILED, reason="interrupted") for group in simulated.unfinished]
        never_started = [
            GroupOutcome(prompt_uid=uid, verdict=Verdict.FAILED, reason="never started")
            for uid in summary.never_started
        ]
        summary = replace(summary, outcomes=(*summary.outcomes, *interrupted, *never_started), never_started=())
        lost_tok += sum(group.generated_tok for group in simulated.unfinished)
        simulated.unfinished = []
    simulated.summary = summary
    return lost_tok
