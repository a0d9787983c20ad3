"""The recipe's entry with a trainer that kills parts of its engines at chosen moments, and writes down what it did.

DEATHS='[[2, "training", "server", 1]]' INSPECTION_FILE=out.jsonl python -m tests.support.dying_run <hydra overrides>
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import hydra
import psutil
import ray
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.trainer.main_ppo import run_ppo

from recipe.async_dapo.shipping import shipped
from recipe.async_dapo.startup.preflight import check_all
from recipe.async_dapo.store import start_queue
from recipe.async_dapo.training import run as training

from .inspected_run import RecordsWeights

PATIENCE_S = 60.0
FAILING_ENGINE = Path(__file__).with_name("failing_engine")


class DyingTrainer(RecordsWeights):
    """`DEATHS` lists (step, moment, part, engine). Parts that are killed: `server`, `core`, `rank` (the last tensor
    parallel one); `exception` lets the core end by one.
    """

    def prepare_step(self) -> dict[str, Any]:
        metrics = super().prepare_step()
        self._kill("round")
        return metrics

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self._kill("training")
        return super()._update_actor(batch, metrics)

    def on_step_end(self) -> None:
        super().on_step_end()
        self._note({"step": self.global_steps, "left_of_the_dead": [pid for pid in self._dead if _runs(pid)]})

    def _kill(self, moment: str) -> None:
        for step, when, part, engine in json.loads(os.environ["DEATHS"]):
            if (step, when) == (self.global_steps, moment):
                if moment == "round":
                    self._await_requests()
                self._kill_part(part, engine)

    def _kill_part(self, part: str, engine: int) -> None:
        [replica] = [replica for replica in self.checkpoint_manager.replicas if replica.replica_rank == engine]
        server = psutil.Process(replica.processes[0].pid)
        core = next(child for child in server.children() if "EngineCore" in " ".join(child.cmdline()))
        ranks = [child for child in core.children() if "resource_tracker" not in " ".join(child.cmdline())]
        victim = {"server": server, "core": core, "exception": core, "rank": ranks[-1] if ranks else None}[part]
        assert victim is not None, "an engine of one rank computes in its core"
        self._dead += [server.pid, core.pid, *(rank.pid for rank in ranks)]
        self._note({"step": self.global_steps, "killed": part, "engine": engine, "at": time.time()})
        os.kill(victim.pid, signal.SIGUSR1 if part == "exception" else signal.SIGKILL)

    def _await_requests(self) -> None:
        """Until all engines generate."""
        balancer = self.replay_buffer.manager._balancer
        deadline = time.monotonic() + PATIENCE_S
        while (status := ray.get(balancer.get_status.remote()))["is_open"] and time.monotonic() < deadline:
            if all(status["servers"].values()):
                return
            time.sleep(0.05)

    def _note(self, record: dict[str, Any]) -> None:
        with open(os.environ["INSPECTION_FILE"], "a") as file:
            file.write(json.dumps(record) + "\n")

    _dead: list[int] = []  # noqa: RUF012 (one trainer a process)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class DyingTaskRunner:
    def run(self, config: DictConfig) -> None:
        start_queue(config.transfer_queue)
        training.train(config, trainer_cls=DyingTrainer)


@hydra.main(config_path="../../recipe/async_dapo/config", config_name="async_dapo_trainer", version_base=None)
def main(config: DictConfig) -> None:
    check_all(config)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(FAILING_ENGINE), os.environ["PYTHONPATH"]])
    with shipped(config) as first_actor:
        run_ppo(config, task_runner_class=first_actor(ray.remote(num_cpus=1)(DyingTaskRunner)))


if __name__ == "__main__":
    main()
