"""One rollout round: which groups wait, run and have ended, and when to stop. One object per step.

    add_groups -> [waiting] --take--> [running] --report--> [ended]
                                           |
              rule met, and all that must finish has: HALTED (nothing starts)
                              draining: until nothing runs; else at once
                                           v
                                        STOPPED  -> whatever runs is interrupted and comes back unfinished

The coordinator actor holds the current round and turns what changed into events; the simulator drives the same class.

A fresh group waits while those that have begun may already fill every step in which they can be trained: what is begun
beyond that would become too stale, however soon it ended.

With quotas a batch is made of parts, and the rule is met when it is for each part (`mix.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

from .failures import EndedGroups
from .mix import ALL, Quota, RoundPart
from .outcome import JUDGED, GroupOutcome, Verdict
from .over_sampling import AvailableGroups
from .round_groups import WAITING, GroupState, RoundGroups, Startable, WaitingGroup
from .stop_rules import StopRule, StopRuleName, rule_of
from .summed import Summed


class GroupEvent(StrEnum):
    """What happens in a group while it runs."""

    GENERATED = "generated"  # one of its trajectories has been generated to its end
    IDLE = "idle"  # one of them needs no engine for a while, and others generate in its stead
    GOES_ON = "goes_on"  # it generates again
    CERTAIN = "certain"  # two of them differ, so that the group will be valid, and others still run


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSpec:
    """A round to open; reports that carry another `round_id` are refused."""

    goes_on: ClassVar[bool] = False  # while its batches are trained
    round_id: str
    stop_rule: StopRuleName | None  # None: it ends when every group has, and engines go on (validation)
    parts: Mapping[str, Quota]  # of the batch, by the source of its groups; or one part of all groups, `ALL`
    drains: bool  # running groups are awaited after the rule is met, rather than interrupted
    draws_again: bool = False  # groups that the rule did not wait for start again, complete or not
    must_finish: frozenset[str] = frozenset()  # too stale in the next step: the round does not halt before they ended
    # N' of CoPRIS: a group starts while fewer trajectories generate; None = only the slots bound what runs
    pool_size: int | None = None
    most_unfinished: int | None = None  # and while fewer are unfinished, idle ones included

    @property
    def validates(self) -> bool:
        return self.stop_rule is None

    def make_rule(self, quota: Quota) -> StopRule:
        return rule_of(self.stop_rule, quota.target_valid_groups - quota.carried_valid_groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSummary(Summed):
    """What a closed round leaves behind, or a part of one that goes on, and what the trainer's pool makes of it."""

    LATEST = ("round_id", "never_started", "handed_over", "under_way")
    LARGEST = ("idle_max",)

    round_id: str
    outcomes: tuple[GroupOutcome, ...]  # in order of completion
    start_order: tuple[str, ...]
    never_started: tuple[str, ...] = ()
    taken_unreported: tuple[str, ...] = ()  # started, and neither ended nor set aside: interrupted
    idle_max: int = 0  # trajectories at once that needed no engine, and had not ended
    handed_over: tuple[str, ...] = ()  # to be trained on, of a round that goes on
    under_way: int = 0  # groups that wait and run there
    stop_latency_s: float = 0.0  # from the report that met the stop rule until every engine was idle

    # From the pool; see `PromptPool.settle`.
    trained_uids: tuple[str, ...] = ()  # exactly B, if any
    resumed: int = 0  # started groups that are continued from earlier rounds
    requeued: int = 0  # interrupted groups that start again
    lost_reports: int = 0  # of these: a worker has neither finished nor given them back
    discarded_tok: int = 0  # of groups that start again or are retired

    def ended(self, verdict: Verdict) -> list[GroupOutcome]:
        """The groups that have ended so."""
        return [outcome for outcome in self.outcomes if outcome.verdict is verdict]


class Round:
    """The groups of one round, from waiting to ended."""

    def __init__(self, spec: RoundSpec) -> None:
        self.round_id = spec.round_id
        self._spec = spec
        self._parts = {name: RoundPart(quota, spec.make_rule(quota)) for name, quota in spec.parts.items()}
        self._groups = RoundGroups(pool_size=spec.pool_size, most_unfinished=spec.most_unfinished)
        self._must_finish = set(spec.must_finish)
        self._start_order: list[str] = []
        self._ended: list[tuple[str, GroupOutcome]] = []  # with their parts
        self.is_stopped = False  # never reverts
        self._update()

    @property
    def is_halted(self) -> bool:
        """Whether no further group may start."""
        return self.is_stopped or self._is_rule_met

    @property
    def _is_rule_met(self) -> bool:
        return all(part.is_filled for part in self._parts.values()) and not self._must_finish

    @property
    def num_waiting(self) -> int:
        return self._groups.num(*WAITING)

    @property
    def num_running(self) -> int:
        return self._groups.num(GroupState.RUNNING)

    @property
    def available(self) -> Mapping[str, AvailableGroups]:
        """Groups of each part that are valid or can still become so."""
        return {name: self._available(name, *GroupState) for name in self._parts}

    def _available(self, name: str, *states: GroupState) -> AvailableGroups:
        """Groups of a part that are valid, or in these states."""
        unfinished = self._groups.num(*states, part=name)
        return self._parts[name].available(unfinished=unfinished, certain=self._groups.num_certain(name))

    @property
    def wants_prompts(self) -> bool:
        """Whether a target cannot be reached, or is not expected to be, with the available groups."""
        if self._spec.validates or self.is_halted:
            return False
        return any(self._parts[name].wants_prompts(available) for name, available in self.available.items())

    @property
    def may_start(self) -> bool:
        """Whether a waiting group may start now, on some worker."""
        return self._groups.num_of(self._startable) > 0

    def may_start_on(self, worker: int) -> bool:
        """Whether this worker may take one."""
        return self._groups.next_for(worker, self._startable) is not None

    @property
    def _startable(self) -> Startable:
        """The waiting groups that may start now. Fresh ones of a part that has too few come before those of another."""
        if self.is_halted or not self._groups.has_capacity:
            return {}
        startable = {(GroupState.BEGUN, name): 0 for name in self._parts}
        for name, part in self._parts.items():
            begun = self._available(name, GroupState.RUNNING, GroupState.BEGUN)
            if (part.quota.begins_ahead or not part.is_filled) and self._can_be_trained(part, begun):
                startable[GroupState.FRESH, name] = 2 if part.is_ahead(begun) else 1
        return startable

    def _can_be_trained(self, part: RoundPart, begun: AvailableGroups) -> bool:
        """Whether one more group of a part can be trained in time, if all that have begun are."""
        return part.can_be_trained(begun)

    def add_groups(self, groups: Sequence[WaitingGroup]) -> None:
        """Add waiting groups, in order of start."""
        is_whole = self._parts.keys() == {ALL}
        for group in groups:
            part = ALL if is_whole else group.source
            self._groups.add(group, part)
            if part not in self._parts:  # it never starts, and no round may wait for it
                self._must_finish.discard(group.prompt_uid)
        self._update()

    def take(self, worker: int) -> str | None:
        """The next group for a slot of this worker; None when nothing may start now."""
        uid = self._groups.start(worker, self._startable)
        if uid is not None:
            self._start_order.append(uid)
            self._parts[self._groups.part_of(uid)].rule.on_start(uid)
        return uid

    def note(self, uid: str, event: GroupEvent) -> None:
        """Record what has happened in a running group. Of another group nothing is recorded."""
        match event:
            case GroupEvent.GENERATED:
                self._groups.end_trajectory(uid)
            case GroupEvent.CERTAIN:
                self._groups.mark_certain(uid)
            case GroupEvent.IDLE:
                self._groups.note_idle(uid, 1)
            case GroupEvent.GOES_ON:
                self._groups.note_idle(uid, -1)

    def report(self, outcome: GroupOutcome) -> None:
        """Record that a running group has ended. A second report of a group is ignored."""
        if outcome.prompt_uid not in self._groups:
            return
        name = self._groups.part_of(outcome.prompt_uid)
        self._groups.remove(outcome.prompt_uid)
        self._must_finish.discard(outcome.prompt_uid)
        self._ended.append((name, outcome))
        part = self._parts[name]
        part.valid += outcome.verdict is Verdict.VALID
        part.rule.on_end(outcome.prompt_uid, outcome.verdict)
        self._update()

    def count_ended(self, part: str = ALL) -> EndedGroups:
        """How groups have ended so far, of all parts or of one."""
        return EndedGroups.of([outcome for own, outcome in self._ended if part in (ALL, own)])

    def close(self) -> RoundSummary:
        """End the round: what still waits or runs is given back."""
        return RoundSummary(
            round_id=self.round_id,
            outcomes=tuple(
                replace(outcome, verdict=Verdict.REDRAWN) if self._starts_again(part, outcome) else outcome
                for part, outcome in self._ended
            ),
            start_order=tuple(self._start_order),
            never_started=self._groups.uids(*WAITING),
            taken_unreported=self._groups.uids(GroupState.RUNNING),
            idle_max=self._groups.idle_max,
        )

    def _starts_again(self, part: str, outcome: GroupOutcome) -> bool:
        may_start = self._spec.draws_again and outcome.verdict in JUDGED
        return may_start and not self._parts[part].rule.has_counted(outcome.prompt_uid)

    def _update(self) -> None:
        if self._spec.validates:
            has_ended = bool(self._start_order) and not self.num_running and not self.num_waiting
        else:
            has_ended = self._is_rule_met and not (self._spec.drains and self.num_running)
        self.is_stopped = self.is_stopped or has_ended
