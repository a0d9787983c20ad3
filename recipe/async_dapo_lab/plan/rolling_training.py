"""Steps of this recipe with engines on GPUs of their own (`async_dapo.placement=separate`), whose rounds have no end.

    engines  generate ------- a few at a time: new weights ------ generate ---------------------------------- ...
    trainer  wait for B valid groups -- train -- weights to the engines' side -- wait for B valid groups ---- ...

The production machines decide: `RollingUpdate` which replica is updated when, `Deadlines` which groups begin and which
are handed over, `OverSampling` and `RoundSize` how many are on their way, `Balance` where requests go. A replica that
is updated takes no requests meanwhile. With `partial` what it runs goes on there with a new prefill, with
`partial_stale_kv` without one; with `consistent` it is updated when nothing is in flight there any more.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from ...async_dapo.core.outcome import GroupOutcome, Verdict
from ...async_dapo.core.over_sampling import AtHand
from ...async_dapo.core.staleness import VersionShares, VersionTag
from ...async_dapo.core.trajectory import PromptGroup
from ...async_dapo.option_values import Auto, ConfigError
from ...async_dapo.separate.deadlines import Deadlines
from ...async_dapo.separate.options import rolling_update
from ...async_dapo.separate.rolling_update import Phase, RollingUpdate
from .engine import Request
from .group_simulation import GroupSimulation
from .measures import StepMeasure, observe_round, version_tags
from .scenario import Scenario
from .separate_training import SplitRun
from .systems import UNBOUNDED, System


class RollingGroups(GroupSimulation):
    """Prompt groups on servers each of which has a policy version of its own."""

    def __init__(self, *args: Any, replicas: RollingUpdate, **kwargs: Any) -> None:
        super().__init__(*args, policy_version=replicas.newest_version, **kwargs)
        self._replicas = replicas

    def _version_at(self, lease_id: str) -> int:
        server_id = self._fleet.leases.server_of(lease_id)
        assert server_id is not None, "tokens come from a server"
        return self._replicas.version_of(server_id)

    def interrupt(self, server_id: str) -> list[Request]:
        """Stop a server. Returns what is to be sent to it again."""
        keep = self._options.keeps_kv
        requests = self._fleet.interrupt(server_id, keep=keep)
        for request in requests:
            self._record(request)
        if keep:
            return []
        for request in requests:
            if not request.remaining_tok:
                self._receive(request)
        return [self._again(request) for request in requests if request.remaining_tok]

    def _again(self, request: Request) -> Request:
        if request.generated_tok:
            self.reprefilled_tok += request.context_tok
        return Request(
            owner=request.owner,
            context_tok=request.context_tok,
            remaining_tok=request.remaining_tok,
            prefill_tok=request.context_tok,
        )

    def take_out(self, server_id: str) -> list[Request]:
        """All that a server runs, whose tokens have been delivered."""
        requests = self._fleet.interrupt(server_id, keep=False)
        for request in requests:
            self._record(request)
        return requests

    def send_elsewhere(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._send(request.owner.group, request.owner.trajectory)

    @property
    def recorded_tok(self) -> int:
        """Tokens of the groups that run."""
        return sum(group.generated_tok for group, _ in self._running.values())


class RollingRun(SplitRun):
    """This recipe with engines on GPUs of their own."""

    def __init__(self, scenario: Scenario, system: System) -> None:
        super().__init__(scenario, system)
        options = self.options
        if not options.keeps_tokens:
            raise ConfigError("rollout_strategy", options.rollout_strategy, "nothing is discarded where no round ends")
        rolling = rolling_update(options)
        self.replicas = RollingUpdate(version=0, drains=rolling["drains"], max_lag=rolling["max_lag"])
        self.deadlines = Deadlines(target_valid_groups=scenario.train_batch_size, max_staleness=options.max_staleness)
        self._over_sampling, self._round_size = options.over_sampling(), options.round_size()
        self._valid: dict[str, PromptGroup] = {}  # wait for their batch
        self._certain: set[str] = set()  # run, and will be valid
        self._generating = 0  # trajectories
        self._is_training = False
        self._batch: list[VersionTag] = []  # of this step, as far as it is handed over
        self._log_prob_s = self._train_s = 0.0
        self._groups = RollingGroups(
            self._fleet,
            self._clock,
            options,
            scenario,
            resume_delay_s=0.0,
            listener=self,
            replicas=self.replicas,
        )
        for server_id in self._fleet.engines:
            self.replicas.join(server_id)
            self.replicas.updated(server_id)
        self._begin_step()

    @property
    def first_pool_size(self) -> int:
        return self._pool_size

    def _decide_pool_size(self) -> int:
        """Trajectories that may generate at once."""
        if self.options.rollout_pool_size is not Auto.AUTO:
            return self.options.fixed_pool_size or UNBOUNDED
        return self._round_size.decide(self._fleet.balance.places, self._over_sampling.valid_share)

    def _run_step(self) -> StepMeasure:
        self._fill()
        while self.replicas.newest_version < self._step:
            goes_on = self._clock.step()
            assert goes_on, f"step {self._step}: nothing is planned"
        valid_tok = sum(group.generated_tok for group in self._valid.values())
        measure = self._measure(
            self._batch,
            self._before,
            held_tok=valid_tok + self._groups.recorded_tok + self._fleet.undelivered_tok,
            log_prob_s=self._log_prob_s,
            train_s=self._train_s,
            wasted_tok=0,
            generating_s=self._clock.now_s - self._began_s,
            stopped_s=0.0,
            reprefilled_tok=self._groups.reprefilled_tok,
            events=self._clock.events - self._events_before,
        )
        self._learn()
        self._begin_step()
        return measure

    def _begin_step(self) -> None:
        self._step += 1
        self._began_s, self._events_before, self._before = self._clock.now_s, self._clock.events, self._fleet.counters()
        self._groups.reprefilled_tok = 0
        self._ended, self._drawn, self._batch, self._log_prob_s, self._train_s = [], 0, [], 0.0, 0.0
        self._fleet.turn_over()
        self._pool_size = self._decide_pool_size()
        self._is_training = False
        self._hand_over()

    def _learn(self) -> None:
        share = VersionShares.of(self._batch, step=self._step).partial_share
        observe_round(self._over_sampling, self._round_size, self._ended, partial_share=share)

    # ---- the trainer ----

    def _hand_over(self) -> None:
        """Train on the next part of the batch, if it is there."""
        if self._is_training or (uids := self.deadlines.hand_over(self._part)) is None:
            return
        tags = version_tags(self._valid.pop(uid) for uid in uids)
        log_prob_s, train_s = self._trainer.seconds(tags, [], step=self._step)
        self._batch += tags
        self._log_prob_s, self._train_s = self._log_prob_s + log_prob_s, self._train_s + train_s
        self._is_training = True
        ends_s = self._clock.now_s + log_prob_s + train_s
        if self.deadlines.step == self._step:
            self._clock.at(ends_s, self._go_on_training)
        else:
            self._clock.at(ends_s + self._scenario.transfer_s, partial(self._publish, self._step))

    def _go_on_training(self) -> None:
        self._is_training = False
        self._hand_over()
        self._fill()

    def _publish(self, version: int) -> None:
        """The engines' side has the weights. This ends the step."""
        self.replicas.publish(version)
        self._move()

    # ---- replicas ----

    def _move(self) -> None:
        for move in self.replicas.moves(self._fleet.leases.inflight):
            self._fleet.leases.close(move.replica_id)
            if move.phase is Phase.UPDATING:
                self._update(move.replica_id, self._groups.interrupt(move.replica_id))

    def _update(self, server_id: str, requests: Sequence[Request]) -> None:
        seconds = self._scenario.constants.stop_s + self._scenario.transfer_s
        self._clock.at(self._clock.now_s + seconds, partial(self._end_update, server_id, requests))

    def _end_update(self, server_id: str, requests: Sequence[Request]) -> None:
        move = self.replicas.updated(server_id)
        if move is None:
            self._groups.send_elsewhere(requests)
        elif move.phase is Phase.UPDATING:  # the others have gone on meanwhile
            self._update(server_id, requests)
        elif server_id in self._fleet.engines:
            self._fleet.go_on(server_id, requests)
            self._fleet.reopen(server_id)
        else:
            self._fleet.gain(server_id)
        self._move()
        self._fill()

    @property
    def server_ids(self) -> list[str]:
        """Those that are there, the ones that have joined last at the end."""
        return list(self._fleet.engines)

    def lose(self, server_id: str) -> None:
        """Between two steps a server dies."""
        requests = self._groups.take_out(server_id)
        self.replicas.leave(server_id)
        self._fleet.lose(server_id)
        self._groups.send_elsewhere(requests)
        self._move()

    def gain(self, server_id: str) -> None:
        """Between two steps one more is there, without weights, and with a name that none had before."""
        self._update(self.replicas.join(server_id).replica_id, [])

    # ---- groups ----

    def _fill(self) -> None:
        """Begin what engines have room for, and what can be trained in time."""
        self._pool_size += self._fleet.balance.take_growth()
        while self._generating < self._pool_size and self._may_begin():
            (group,) = self._workload.draw(1, self._step)
            self._drawn += 1
            self.deadlines.begin(group.uid, self.replicas.oldest_version)
            self._generating += len(group.trajectories)
            self._groups.start(group)

    def _may_begin(self) -> bool:
        """Those in training are counted, until their weights are there: most groups begin under fresh ones."""
        in_training = len(self._batch) // self.options.rollout_n
        certain = self.deadlines.num_valid + len(self._certain) + in_training
        at_hand = AtHand(certain=certain, open=self.deadlines.num_running - len(self._certain))
        return self._over_sampling.missing(at_hand) > 0 and self.deadlines.may_begin(self.replicas.oldest_version)

    def on_generated(self, uid: str) -> None:
        self._generating -= 1
        self._update_drained()
        self._fill()

    def on_waiting(self, uid: str, change: int) -> None:
        self._generating -= change
        self._update_drained()
        self._fill()

    def on_certain(self, uid: str) -> None:
        self._certain.add(uid)

    def on_end(self, group: PromptGroup, outcome: GroupOutcome) -> None:
        self._certain.discard(group.uid)
        self._ended.append(outcome)
        is_valid = outcome.verdict is Verdict.VALID
        self.deadlines.end(group.uid, is_valid=is_valid)
        if is_valid:
            self._valid[group.uid] = group
        self._hand_over()
        self._fill()

    def _update_drained(self) -> None:
        inflight = self._fleet.leases.inflight_on
        if any(self.replicas.phase_of(key) is Phase.DRAINING and not inflight(key) for key in self._fleet.engines):
            self._move()
