"""The inspected trainer with engines on GPUs of their own."""

import time
from typing import Any

import ray

from recipe.async_dapo.extensions.separate.trainer import SeparateTrainer

from ....support.inspected_trainer import Gauge, InspectedTrainer, note

REJOIN_S = 300.0  # longest time until an engine has started in the place of a lost one


class InspectedSeparateTrainer(InspectedTrainer, SeparateTrainer):
    """Its engines are never at rest, but for a checkpoint."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._looks_at_engines = False

    def _save_checkpoint(self) -> None:
        """With a valid group that waits for a later batch, if one of those under way is valid."""
        while not self.replay_buffer.manager.ask("count_ended").valid and self._engines_status()["total_inflight"]:
            time.sleep(0.1)
        super()._save_checkpoint()

    def on_sample_end(self) -> None:
        super().on_sample_end()
        self._in_training = Gauge(lambda: self._engines_status()["total_inflight"])

    def on_step_end(self) -> None:
        super().on_step_end()
        note(step=self.global_steps, most_inflight_in_training=self._in_training.stop())
        if self.global_steps == self._switches.rejoin_at:
            self._await_replacement()

    def _versions(self) -> dict[str, int]:
        return ray.get(self.replay_buffer.manager._balancer.versions.remote())

    def _await_replacement(self) -> None:
        """Until an engine that has started in the place of a lost one has weights."""
        rollout = self.config.actor_rollout_ref.rollout
        deadline = time.monotonic() + REJOIN_S
        while (versions := self._versions()).keys() and (
            len(versions) < rollout.nnodes * rollout.n_gpus_per_node or min(versions.values()) < 0
        ):
            assert time.monotonic() < deadline, f"no engine has joined: {versions}"
            self._engines._take_in_started()
            self._engines._replacements.begin()
            time.sleep(0.2)
        note(step=self.global_steps, rejoined=versions)
