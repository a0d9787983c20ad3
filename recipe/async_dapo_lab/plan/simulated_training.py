"""Steps of a run: open a round, let it stop, train, update the weights. Plays the trainer and its replay buffer."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ...async_dapo.config.options import AsyncDAPOConfig
from ...async_dapo.core.mix import Mix
from ...async_dapo.core.outcome import Verdict
from ...async_dapo.core.pool import PoolWatch, PromptPool
from ...async_dapo.core.round import RoundSpec
from ...async_dapo.core.staleness import VersionShares, VersionTag
from ...async_dapo.core.trajectory import PromptGroup
from .engine import EngineCounters
from .fleet import Fleet, no_garbage_collection
from .measures import StepMeasure, tokens_by_age, version_tags
from .round_simulation import RoundSimulation, SimulatedRound, take_losses
from .scenario import Scenario
from .systems import System, TrainerPasses
from .workload import ANSWERS


class TrainingRun:
    """One system in one scenario, step by step. Decisions are those of the recipe's own `core/`.

    Args:
        fleet: makes the servers; a subclass of `Fleet` can look at them.
        mix: None = batches of any valid groups.
        watches: are told what becomes of groups.
    """

    def __init__(
        self,
        scenario: Scenario,
        system: System,
        fleet: Callable[[Scenario, AsyncDAPOConfig], Fleet] = Fleet,
        mix: Mix | None = None,
        watches: Collection[PoolWatch] = (),
    ) -> None:
        self._scenario = scenario
        self._habits = system.habits
        self.options = system.options(scenario)
        self._fleet = fleet(scenario, self.options)
        self._fleet.balance.open(self._fleet.loads)
        self._workload = scenario.workload()
        self._trainer = TrainerPasses(scenario, system.habits, self.options)
        self._mix = mix or Mix(self.options.over_sampling())
        self._round_size = self.options.round_size()
        self._retries = 0
        self.pool = PromptPool(
            mix=self._mix,
            mixes_versions=self.options.mixes_versions,
            stop_rule=self.options.stop_rule,
            staleness=self.options.staleness,
            new_uid=self._new_uid,
            watches=watches,
        )
        self._stored: dict[str, list[VersionTag]] = {}  # valid groups, as in the production store
        self._step = 0
        self._since_stop_s = 0.0  # what the trainer does between two rounds

    @property
    def first_pool_size(self) -> int:
        """Trajectories that the first round may have unfinished at once."""
        spec = self._spec()
        return min((most for most in (spec.pool_size, spec.most_unfinished) if most), default=self.options.slots_hold)

    @property
    def natural_len_tok(self) -> float:
        """Mean response length of the valid groups among all prompts drawn so far [tokens]."""
        return self._workload.mean_drawn_tok

    def step(self) -> StepMeasure:
        """Run one training step."""
        self._step += 1
        before, ledger = self._fleet.counters(), replace(self.pool.ledger)
        simulated = self._simulate(self._open_round())
        missing = self.options.target_valid_groups - len(self.pool.carried)
        lost_tok = take_losses(simulated, self._habits, missing=missing, stop_rule=self.options.stop_rule)
        simulated.summary = self.pool.settle(simulated.summary, simulated.unfinished)
        self.pool.check_ledger()
        if not self.options.keeps_tokens:
            redrawn_uids = {outcome.prompt_uid for outcome in simulated.summary.ended(Verdict.REDRAWN)}
            redrawn = [group for group in self.pool.state().waiting if group.uid in redrawn_uids]
            for group in [*simulated.unfinished, *redrawn]:
                self._workload.answer_anew(group.prompt[ANSWERS])
        return self._measure(
            simulated,
            wasted_tok=lost_tok + simulated.summary.discarded_tok,
            retired_groups=self.pool.ledger.retired - ledger.retired,
            drawn_groups=self.pool.ledger.drawn - ledger.drawn,
            before=before,
        )

    def _open_round(self) -> list[PromptGroup]:
        """As `RoundReplayBuffer.open_round`."""
        for uid in self.pool.retire(self._step):
            self._stored.pop(uid, None)
        for group in self.pool.state().waiting:
            if group.drawn_at_step == self._step:  # of those that were retired
                self._workload.answer_anew(group.prompt[ANSWERS])
        missing = self.pool.missing_for_round()
        return self._draw(missing) if missing else self.pool.dispatch()

    def _draw(self, counts: Mapping[str, int]) -> list[PromptGroup]:
        """The next prompts of each part of the mix: selection by history is not modelled."""
        for part, count in counts.items():
            self.pool.add_drawn(self._workload.draw(count, self._step, part))
        return self.pool.dispatch()

    def _simulate(self, groups: Sequence[PromptGroup]) -> SimulatedRound:
        simulation = RoundSimulation(
            self._fleet,
            self.options,
            self._habits,
            step=self._step,
            spec=self._spec(),
            since_stop_s=self._since_stop_s,
            scenario=self._scenario,
            mix=self._mix,
            draw=lambda counts: self._draw(counts),
            on_valid=self._store,
        )
        with no_garbage_collection():
            return simulation.run(groups)

    def _spec(self) -> RoundSpec:
        """As `RoundReplayBuffer.open_round`."""
        return self.options.round_spec(
            RoundSpec,
            capacity=self._fleet.balance.capacity,
            pool=self.pool,
            round_size=self._round_size,
            round_id=f"step-{self._step}",
            must_finish=self.pool.must_finish(self._step),
        )

    def _store(self, group: PromptGroup) -> None:
        self._stored[group.uid] = version_tags([group])

    def _new_uid(self) -> str:
        self._retries += 1
        return f"retry-{self._retries}"

    def _measure(
        self,
        simulated: SimulatedRound,
        *,
        wasted_tok: int,
        retired_groups: int,
        drawn_groups: int,
        before: EngineCounters,
    ) -> StepMeasure:
        """As the metrics of `RoundReplayBuffer.sample`, and the time that training takes."""
        batch = [tag for uid in simulated.summary.trained_uids for tag in self._stored.pop(uid)]
        self._stored = {uid: self._stored[uid] for uid in self.pool.carried_uids}
        versions = VersionShares.of(batch, step=self._step)
        outcomes = simulated.summary.outcomes
        ended = Counter(outcome.verdict for outcome in outcomes)
        self._mix.observe(versions.partial_share, outcomes)
        self._round_size.observe(outcomes)
        buffered_tok = [one.generated_tok for group in self.pool.buffered for one in group.trajectories]
        log_prob_s, train_s = self._trainer.seconds(batch, buffered_tok)
        rollout_s = simulated.rollout_s + self._scenario.stop_s
        self._since_stop_s = log_prob_s + train_s + self._scenario.update_s
        return StepMeasure(
            step_s=rollout_s + self._since_stop_s,
            log_prob_s=log_prob_s,
            train_s=train_s,
            **self._fleet.in_measure(before, rollout_s=rollout_s),
            filtered_tok=sum(sum(o.response_lens_tok) for o in outcomes if o.verdict is Verdict.FILTERED),
            wasted_tok=wasted_tok,
            buffered_tok=sum(buffered_tok) + sum(map(_length, self._stored.values())),
            **tokens_by_age(batch, versions, limit=self.options.staleness, step=self._step),
            trained_trajectories=len(batch),
            resumed_trajectories=len(batch) - versions.ages[0],
            trained_groups=len(simulated.summary.trained_uids),
            valid_groups=ended[Verdict.VALID],
            filtered_groups=ended[Verdict.FILTERED],
            drawn_groups=drawn_groups,
            retired_groups=retired_groups,
            reprefilled_tok=simulated.reprefilled_tok,
            num_gpus=self._scenario.num_gpus,
        )


def _length(tags: Sequence[VersionTag]) -> int:
    """Generated tokens of trajectories."""
    return sum(n for tag in tags for _, n in tag["segments"])
