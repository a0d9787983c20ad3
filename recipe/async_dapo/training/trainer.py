"""The trainer: verl's PPO trainer with rounds that stop early, on colocated engines.

Every loop of the system, what it waits for (...), and what unblocks it:

    trainer, once a step
        open_round                     hands groups to the coordinator, starts all workers
        next_event ................... coordinator: prompts are needed (draw, add, wait again), or all engines are idle
        close_round .................. each worker's report; the load balancer: every lease is back
        train, save .................. verl's training workers; a save: tokens that workers are still parking
        update_weights ............... every engine has taken the weights, or is given up
        open_engines ................. every server has opened its gate
    worker, some calls at once; with `rollout_pool_size=null` one for each of `max_concurrent_prompts` slots
        take_group ................... coordinator: a group is free and fits the pool, or nothing more will start
        run the group ................ its n trajectories, at once:
            agent loop: lease ........ load balancer: another request's release; the stop answers with nothing
            agent loop: generate ..... server: pieces of tokens, the end, or an abort; or its death
            score .................... a reward worker: a result, an error, or the time limit
        report_completion              may meet the stop rule
    worker, one watcher
        wait_stopped ................. coordinator: the stop rule is met; running trajectories are interrupted
    coordinator, once a round
        balancer.stop ................ every server has aborted its requests and is idle; then `next_event`
    server
        the engine's own loop ........ requests; a stop closes the gate, `open_engines` opens it

Coordinator and load balancer have no loop of their own: they answer calls, and keep those that have to wait.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.utils.debug import marked_timer

from .. import store
from .metrics import update_metrics
from .run_trainer import RunTrainer


@register_trainer("async_dapo")
class AsyncDAPOTrainer(RunTrainer):
    """One step: open a round, wait for its stop, train on exactly B valid groups, update the engines' weights."""

    _keys: Sequence[str] = ()  # of the step's rows

    def prepare_step(self) -> dict[str, Any]:
        self._begin_phase("rollout")
        self.replay_buffer.open_round(self.global_steps)
        return {}

    def on_sample_end(self) -> None:
        self._begin_phase("training")
        self.checkpoint_manager.sleep_replicas()
        if self.curr_step_profile:
            self._stop_rollout_profiling()

    def on_step_end(self) -> None:
        with self._updating_weights():
            self.checkpoint_manager.update_weights(self.global_steps)
            self.replay_buffer.manager.open_engines()

    @contextmanager
    def _updating_weights(self) -> Iterator[None]:
        """Measures its time, and notifies observers."""
        self._begin_phase("weights")
        with marked_timer("update_weights", self.timing_raw, color="red"):
            yield
        self._begin_phase(None)

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> KVBatchMeta:
        self._keys = batch.keys
        batch = super()._balance_batch(batch, metrics, *args, **kwargs)
        store.complete_padding(batch)
        if self.config.trainer.critic_warmup <= self.global_steps:  # else there is no update, and rows do not divide it
            self._step_updates.balance(batch, ranks=self._training_ranks)
        return batch

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """The multiple that verl needs, and that the cut into updates needs, too. The cut comes first: it sizes the
        mini-batches, and verl reads their sizes.
        """
        padded_rows = self._step_updates.fit(self._keys, dp_size, has_ref=self.use_reference_policy)
        return math.lcm(super()._get_required_batch_multiple(dp_size), padded_rows)

    def _updates(self, count: int, *, of_policy: bool = False) -> list[list[int]]:
        return self._step_updates.rows(count, ranks=self._training_ranks, of_policy=of_policy)

    @property
    def _training_ranks(self) -> int:
        return 1 + max(self.actor_rollout_wg._dispatch_info["actor"])

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        compute = partial(super()._compute_old_log_prob, metrics=metrics)
        return self._passes.log_probs(batch, self.global_steps, compute, has_one_update=self._has_one_update(batch))

    def _has_one_update(self, batch: KVBatchMeta) -> bool:
        return len(self._updates(len(batch), of_policy=True)) == 1

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Behind it no token is taken out of the loss any more: the number that it is divided by is settled here."""
        compute = partial(super()._compute_advantage, metrics=metrics)
        batch = self._passes.advantage(batch, self.global_steps, metrics, compute)
        if self.replay_buffer.withheld_tok or self.config.algorithm.rollout_correction.rollout_rs is not None:
            store.exclude_from_denominator(batch, self._updates(len(batch)))
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        compute = partial(super()._update_actor, metrics=metrics)
        batch = self._passes.update(batch, self.global_steps, metrics, compute)
        metrics.update(update_metrics(metrics))
        return batch
