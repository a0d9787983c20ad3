"""Agent loop worker: runs prompt groups in FIFO slots and gives back what the stop interrupts."""

import asyncio
from dataclasses import replace
from functools import partial

from ray import ObjectRef
from verl.experimental.agent_loop import AgentLoopOutput

from .. import store
from ..config.values import ConfigError
from ..core.outcome import Verdict
from ..core.round import GroupEvent, RoundSpec
from ..core.round_groups import WaitingGroup
from ..core.trajectory import AGENT_COLUMN, PromptGroup, Trajectory
from ..runtime.aio import Gathered
from .codec import check_shown, codec
from .group_rollout import GroupRollout, WorkerReport, leaves
from .parking import park_all, unpark
from .reward import RewardScorer
from .run_worker import RunWorker
from .validation import ValidationRollout

WAITING_CALLS = 4  # of `take_group` at once, of a worker: they hide the round trip to the coordinator


class AsyncDAPOAgentLoopWorker(RunWorker):
    """Takes groups from the coordinator as fast as it hands them out; with `rollout_pool_size=null` one slot takes the
    next group when its last one has ended. When `run_round` returns, every task of the round is over; where the copy
    has `extensions/agents`, calls that were interrupted may go on, and agent loops may rest here.
    """

    async def run_round(self, spec: RoundSpec, suspended: frozenset[str]) -> WorkerReport:
        """Run groups until the coordinator has no more, or stops the round.

        Args:
            suspended: agent loops that rest in their workers and are wanted; a validation leaves all alone.

        Raises:
            RuntimeError: when a part of the system died, or a reward failed for good under `reward.on_error=raise`.
            ConfigError: when the reward function does not return the metric that groups are filtered by.
        """
        unfinished: list[PromptGroup] = []
        if not spec.validates:
            await self._loops.end_others(suspended)
        scorer = RewardScorer(self._compute_score, options=self._options)
        self._rollout = rollout = self._group_rollout(spec, scorer)
        try:
            async with asyncio.TaskGroup() as tasks:
                watcher = tasks.create_task(self._interrupt_on_stop(spec, rollout), name="early-stop")
                async with asyncio.TaskGroup() as groups:
                    for i in range(self._options.slots_per_worker or WAITING_CALLS):
                        groups.create_task(self._slot(spec, rollout, unfinished, groups), name=f"slot-{i}")
                watcher.cancel()
        except BaseExceptionGroup as errors:
            error = next(leaves(errors))
            if isinstance(error, ConfigError):
                raise error from None
            raise RuntimeError(f"agent loop worker {self._worker}: {error}") from error
        report = rollout.take_report()
        report.unfinished = unfinished
        for group in unfinished:
            whole = group.take_tokens()
            if self._options.keeps_tokens and whole.has_started:
                self._interrupted[group.uid] = whole
        return report

    async def park(self, uids: list[str]) -> list[ObjectRef]:
        """Put groups whose counts were reported into the object store of this node. Returns where each is."""
        return await park_all([self._interrupted.pop(uid) for uid in uids])

    async def take_report(self) -> WorkerReport:
        """Of a round that goes on, since this was asked last."""
        return WorkerReport() if self._rollout is None else self._rollout.take_report()

    async def running_places(self) -> list[str]:
        """Where the trajectories are that have not ended."""
        return [] if self._rollout is None else self._rollout.running.places()

    def _group_rollout(self, spec: RoundSpec, scorer: RewardScorer) -> GroupRollout:
        """What runs the groups of this round. It tells the coordinator what happens, in gathered calls."""
        report = self._coordinator.report_progress.remote
        events = Gathered[tuple[str, GroupEvent], None](lambda events: report(spec.round_id, events))
        kind = ValidationRollout if spec.validates else GroupRollout
        return kind(
            self._loop_runner(spec),
            scorer,
            loops=self._loops,
            attempt="" if self._options.keeps_tokens else f"@{spec.round_id}",
            options=self._options,
            notify=lambda uid, event: events.add((uid, event)),
        )

    async def _slot(
        self, spec: RoundSpec, rollout: GroupRollout, unfinished: list[PromptGroup], groups: asyncio.TaskGroup
    ) -> None:
        while (ticket := await self._coordinator.take_group.remote(spec.round_id, self._worker)) is not None:
            run = self._run_group(spec, rollout, unfinished, ticket)
            if self._options.slots_per_worker is None:
                groups.create_task(run, name=f"group-{ticket.prompt_uid}")
            else:
                await run

    async def _run_group(
        self, spec: RoundSpec, rollout: GroupRollout, unfinished: list[PromptGroup], ticket: WaitingGroup
    ) -> None:
        group = await unpark(ticket)
        outcome = await rollout.run(group)
        if outcome is None or outcome.verdict is Verdict.SET_ASIDE:
            unfinished.append(group)
        if outcome is None:
            return
        is_valid = outcome.verdict is Verdict.VALID
        if is_valid and spec.goes_on:  # it may be trained on as soon as it is reported
            await self._store(spec, group)
        await self._coordinator.report_completion.remote(spec.round_id, outcome)
        if is_valid and not spec.goes_on:  # the stop need not wait for it
            await self._store(spec, group)

    async def _store(self, spec: RoundSpec, group: PromptGroup) -> None:
        partition_id = store.VAL if spec.validates else store.TRAIN
        # Nothing is computed of a validation.
        inputs_of = store.text_inputs if spec.validates else await codec().inputs(group, self)
        rows = replace(group, prompt=codec().strip(group.prompt))
        await store.put_group(rows, partition_id=partition_id, inputs_of=inputs_of)

    async def _interrupt_on_stop(self, spec: RoundSpec, rollout: GroupRollout) -> None:
        await self._coordinator.wait_stopped.remote(spec.round_id)
        if not spec.validates:
            rollout.running.interrupt()

    def _loop_runner(self, spec: RoundSpec):
        """verl's agent loop, with this round's sampling parameters."""
        rollout = self.config.actor_rollout_ref.rollout
        source = rollout.val_kwargs if spec.validates else rollout
        sampling_params = {
            "temperature": source.temperature,
            "top_p": source.top_p,
            "top_k": source.top_k,
            "repetition_penalty": 1.0,
            "logprobs": True,
        }

        async def run(group: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
            prompt = {AGENT_COLUMN: rollout.agent.default_agent_loop} | codec().open(group.prompt)
            make = partial(self._agent_loops.make, prompt.pop(AGENT_COLUMN))
            names = {"uid": group.uid, "session_id": trajectory.session_id}
            outputs = await self._loops.run(make, dict(sampling_params), **names, **prompt)
            for output in outputs:
                check_shown(output.multi_modal_data, group.prompt.get("raw_prompt"))
            return outputs

        return run
