"""The recipe's entry with engines on GPUs of their own, one of which may be killed, and a trainer that writes down what
the tests want to see.

DEATHS='[[2, "training", "server", 1]]' INSPECTION_FILE=out.jsonl python -m tests.support.separate_run <hydra overrides>
"""

import os
import time
from typing import Any

import hydra
import ray
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.trainer.main_ppo import run_ppo

from recipe.async_dapo.separate.trainer import SeparateTrainer
from recipe.async_dapo.shipping import shipped
from recipe.async_dapo.startup.preflight import check_all
from recipe.async_dapo.store import start_queue
from recipe.async_dapo.training import run as training

from .dying_run import PATIENCE_S, DyingTrainer
from .harness import STALL_S


class WatchedTrainer(DyingTrainer, SeparateTrainer):
    """Writes down each batch, the versions that engines have, and whether they generate while the trainer trains.

    `REJOIN_AT` names the step that ends only when as many engines are there as at the start, `WAIT_AT` the one at whose
    end the run waits to be killed.
    """

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self._note(
            {
                "step": self.global_steps,
                "uids": sorted({key.split("_")[0] for key in batch.keys}),
                "trajectories": len(batch.keys),
                "segments": [[list(segment) for segment in tag["segments"]] for tag in batch.tags],
            }
        )
        return super()._compute_advantage(batch, metrics)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        status = ray.get(self.replay_buffer.manager._balancer.get_status.remote())
        self._note({"step": self.global_steps, "inflight_in_training": status["total_inflight"]})
        return super()._update_actor(batch, metrics)

    def _save_checkpoint(self) -> None:
        """With a valid group that waits for a later batch, if one of those under way is valid."""
        manager = self.replay_buffer.manager
        while not manager.count_ended().valid and ray.get(manager._balancer.get_status.remote())["total_inflight"]:
            time.sleep(0.1)
        super()._save_checkpoint()

    def on_step_end(self) -> None:
        super().on_step_end()
        self._note({"step": self.global_steps, "versions": self._versions()})
        if self.global_steps == int(os.environ.get("REJOIN_AT", "0")):
            self._await_replacement()
        if self.global_steps == int(os.environ.get("WAIT_AT", "0")):
            self._note({"waits": self.global_steps})
            time.sleep(STALL_S)  # it is killed

    def _versions(self) -> dict[str, int]:
        return ray.get(self.replay_buffer.manager._balancer.versions.remote())

    def _await_replacement(self) -> None:
        """Until an engine that has started in the place of a lost one has weights."""
        rollout = self.config.actor_rollout_ref.rollout
        deadline = time.monotonic() + 5 * PATIENCE_S
        while (versions := self._versions()).keys() and (
            len(versions) < rollout.nnodes * rollout.n_gpus_per_node or min(versions.values()) < 0
        ):
            assert time.monotonic() < deadline, f"no engine has joined: {versions}"
            self._engines._take_in_started()
            self._engines._replacements.begin()
            time.sleep(0.2)
        self._note({"step": self.global_steps, "rejoined": versions})


class WatchedRunner:
    def run(self, config: DictConfig) -> None:
        start_queue(config.transfer_queue)
        training.train(config, trainer_cls=WatchedTrainer)


@hydra.main(config_path="../../recipe/async_dapo/config", config_name="async_dapo_trainer", version_base=None)
def main(config: DictConfig) -> None:
    check_all(config)
    with shipped(config) as first_actor:
        run_ppo(config, task_runner_class=first_actor(ray.remote(num_cpus=1)(WatchedRunner)))


if __name__ == "__main__":
    main()
