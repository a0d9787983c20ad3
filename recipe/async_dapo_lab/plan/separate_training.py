"""Steps of verl's `separate_async`, whose trainer and engines have GPUs of their own, on one clock that never stops.

    engines  generate ------------------ stop, new weights -- go on, contexts computed again ------- ...
    trainer  B prompts more, wait -- train on the oldest B valid groups -- update -- B more, wait -- ...

As in verl 0.9.1 with `hybrid_engine=False`: engines generate while the trainer trains, on what is left of two batches
of prompts. Filtered groups are replaced one by one, when the trainer looks for samples, every `poll_s`. A valid group
that more than `max_off_policy_threshold` versions span is dropped and replaced as well. For a weight update all
engines stop at once, and everything that they were at is sent again.
"""

from collections.abc import Sequence

from ...async_dapo.config.values import ConfigError
from ...async_dapo.core.outcome import GroupOutcome, Verdict
from ...async_dapo.core.round import GroupEvent
from ...async_dapo.core.staleness import StalenessLimit, VersionShares, VersionTag
from ...async_dapo.core.trajectory import PromptGroup
from .engine import EngineCounters
from .fleet import Fleet, VirtualClock, no_garbage_collection
from .group_simulation import GroupSimulation
from .measures import StepMeasure, tokens_by_age, version_tags
from .scenario import Scenario
from .systems import System, TrainerPasses

NO_LIMIT = StalenessLimit(max_staleness=None)  # on tokens: verl drops whole groups


class SeparateRun:
    """A run, step by step: of the scenario's servers, some only train, and the others only generate.

    Raises:
        ConfigError: when no GPU is left for training, or for engines.
    """

    def __init__(self, scenario: Scenario, system: System) -> None:
        habits = system.habits
        engines = scenario.num_servers - habits.trainer_servers
        if not 0 < habits.trainer_servers < scenario.num_servers:
            raise ConfigError("servers", scenario.num_servers, f"{habits.trainer_servers} to train, {engines} engines")
        if scenario.train_batch_size % habits.parts:
            raise ConfigError("train_batch_size", scenario.train_batch_size, f"must be a multiple of {habits.parts}")
        self._scenario, self._habits = scenario, habits
        self.options = system.options(scenario)
        self._fleet = Fleet(scenario, self.options, num_servers=engines)
        share = habits.trainer_servers / scenario.num_servers
        cost = scenario.training_cost().at(share, parts=habits.parts)
        self._trainer = TrainerPasses(scenario, habits, self.options, cost=cost)
        self._workload = scenario.workload()
        self._clock = VirtualClock()
        self._part = scenario.train_batch_size // habits.parts  # groups that are trained at a time
        self._ended: list[GroupOutcome] = []  # in this step
        self._drawn = 0  # in this step
        self._step = 0
        self._sampleable: list[PromptGroup] = []  # valid, in the order in which they have ended
        self._filtered: list[PromptGroup] = []  # not yet replaced
        self._go_on([])

    @property
    def first_pool_size(self) -> int:
        """Trajectories that may be unfinished at once."""
        return 2 * self._scenario.train_batch_size * self._scenario.rollout_n

    @property
    def natural_len_tok(self) -> float:
        """Mean response length of the valid groups among all prompts drawn so far [tokens]."""
        return self._workload.mean_drawn_tok

    def step(self) -> StepMeasure:
        """Run one training step."""
        with no_garbage_collection():
            return self._run_step()

    def _run_step(self) -> StepMeasure:
        began_s, self._ended, self._drawn = self._clock.now_s, [], 0
        before = self._fleet.counters()
        self._step += 1
        if self._step == 1:
            self._draw(self._scenario.train_batch_size)  # verl's warm-up
        self._draw(self._scenario.train_batch_size)
        batch: list[VersionTag] = []
        log_prob_s = train_s = wasted_tok = 0.0
        for _ in range(self._habits.parts):
            groups, thrown_tok = self._sample(self._part)
            tags = version_tags(groups)
            seconds = self._trainer.seconds(tags, [])
            self._clock.run_until(self._clock.now_s + sum(seconds))
            batch += tags
            log_prob_s, train_s, wasted_tok = log_prob_s + seconds[0], train_s + seconds[1], wasted_tok + thrown_tok
        stopped = self._running.stop()
        measure = self._measure(
            batch,
            before,
            held_tok=sum(group.generated_tok for group in (*stopped, *self._sampleable)),
            log_prob_s=log_prob_s,
            train_s=train_s,
            wasted_tok=int(wasted_tok),
            generating_s=self._clock.now_s - began_s,
            stopped_s=self._scenario.constants.stop_s + self._scenario.weight_update_s,
        )
        self._clock.run_until(began_s + measure.step_s)
        self._go_on(stopped)
        return measure

    def _measure(
        self,
        batch: Sequence[VersionTag],
        before: EngineCounters,
        *,
        held_tok: int,
        log_prob_s: float,
        train_s: float,
        wasted_tok: int,
        generating_s: float,
        stopped_s: float,
    ) -> StepMeasure:
        """The rollout is what the trainer has waited for samples.

        Args:
            before: the counters when the step began.
            held_tok: that later steps may train on.
            stopped_s: in which neither engines nor trainer do anything [s].
        """
        versions = VersionShares.of(batch, step=self._step)
        filtered = [outcome for outcome in self._ended if outcome.verdict is not Verdict.VALID]
        return StepMeasure(
            step_s=generating_s + stopped_s,
            rollout_s=generating_s - log_prob_s - train_s + min(stopped_s, self._scenario.constants.stop_s),
            log_prob_s=log_prob_s,
            train_s=train_s,
            **self._fleet.in_measure(before, generating_s=generating_s),
            filtered_tok=sum(sum(outcome.response_lens_tok) for outcome in filtered),
            wasted_tok=wasted_tok,
            buffered_tok=held_tok,
            **tokens_by_age(batch, versions, limit=NO_LIMIT, step=self._step),
            trained_trajectories=len(batch),
            resumed_trajectories=sum(tag["min_global_steps"] < self._step - 1 for tag in batch),
            trained_groups=self._scenario.train_batch_size,
            valid_groups=len(self._ended) - len(filtered),
            filtered_groups=len(filtered),
            drawn_groups=self._drawn,
            reprefilled_tok=self._running.reprefilled_tok,
            num_gpus=self._scenario.num_gpus,
        )

    def _go_on(self, groups: list[PromptGroup]) -> None:
        """The engines have the weights of the last step."""
        self._running = GroupSimulation(
            self._fleet,
            self._clock,
            self.options,
            self._scenario,
            resume_delay_s=max(0.0, self._habits.resume_delay_s - self._scenario.weight_update_s),
            policy_version=self._step,
            listener=self,
        )
        for group in groups:
            self._running.start(group)

    # ---- the trainer ----

    def _draw(self, count: int) -> None:
        self._drawn += count
        for group in self._workload.draw(count, self._step):
            self._running.start(group)

    def _sample(self, count: int) -> tuple[list[PromptGroup], int]:
        """As `ReplayBufferAsync.sample`: the oldest groups, and the tokens of those that were too old."""
        wasted_tok = 0
        while True:
            fresh = [group for group in self._sampleable if not self._is_stale(group)]
            stale = [group for group in self._sampleable if self._is_stale(group)]
            wasted_tok += sum(group.generated_tok for group in stale)
            self._sampleable = fresh
            if gone := len(stale) + len(self._filtered):
                self._filtered.clear()
                self._draw(gone)
            if len(fresh) >= count:
                break
            self._clock.run_until(self._clock.now_s + self._habits.poll_s)
        oldest = sorted(fresh, key=lambda group: group.drawn_at_step)
        self._sampleable = oldest[count:]
        return oldest[:count], wasted_tok

    def _is_stale(self, group: PromptGroup) -> bool:
        limit = self._habits.max_versions
        return limit is not None and self._step - group.drawn_at_step + 1 > limit

    # ---- the engines ----

    def on_event(self, uid: str, event: GroupEvent) -> None:
        """Nothing waits for a place, and nobody asks for a verdict before the group has ended."""

    def on_end(self, group: PromptGroup, outcome: GroupOutcome) -> None:
        self._ended.append(outcome)
        (self._sampleable if outcome.verdict is Verdict.VALID else self._filtered).append(group)
