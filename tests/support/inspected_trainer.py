"""A trainer that writes down what the tests want to see, at the moments when it is true, and that kills engines, or
waits, where a test asks for it. `inspected_run` starts it.
"""

import json
import os
import shutil
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Self

import psutil
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from recipe.async_dapo import store
from recipe.async_dapo.config.values import ImportanceSampling
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.data_plane import start_queue
from recipe.async_dapo.rollout.parking import with_tokens
from recipe.async_dapo.training import run as training
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

PROBE = "probe"
WEIGHED_FIELDS = ("uid", "prompts", "input_ids", "policy_versions", "rollout_log_probs", "rollout_is_weights")
NUM_PROBED = 8  # log-probs of so many unfinished trajectories are computed in a step; a whole micro-batch
PATIENCE_S = 300.0  # what has not happened by then hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """What a run does beside training, as `SWITCHES` says.

    Attributes:
        deaths: (step, moment, part, engine) of each. Parts that are killed: `server`, `core`, `rank` (the last tensor
            parallel one); `exception` lets the core end by one. Moments: `round`, `training`.
        rejoin_at: the step that ends only when as many engines are there as at the start.
        wait_at: the step before whose update the run waits to be killed.
    """

    deaths: tuple[tuple[int, str, str, int], ...] = ()
    rejoin_at: int = 0
    wait_at: int = 0

    @classmethod
    def read(cls) -> Self:
        return cls(**json.loads(os.environ.get("SWITCHES", "{}")))


def note(**fields: object) -> None:
    with open(os.environ["INSPECTION_FILE"], "a") as file:
        file.write(json.dumps(fields) + "\n")


class InspectedTrainer(AsyncDAPOTrainer):
    """Writes down each batch. Where no engine dies: engines and leases after the stop, and log-probs by version.

    With importance_sampling=mixture, leaves each policy version's weights, and each batch with those of its tokens,
    beside the inspection file; `weights_by_hand.py` reads them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._switches = Switches.read()
        self._looks_at_engines = not self._switches.deaths
        self._dead: list[int] = []  # processes of the engines that were killed
        self._after_stop: dict[str, Any] = {}

    def prepare_step(self) -> dict[str, Any]:
        if self._looks_at_engines:
            self._at_start = self._describe_buffer()
            self._gauge = Gauge(self._most_running)
        metrics = super().prepare_step()
        self._kill("round")
        return metrics

    def on_sample_end(self) -> None:
        super().on_sample_end()
        if not self._looks_at_engines:
            return
        status = self._engines_status()
        self._await_statistics()
        self._after_stop = {
            "restored": self._at_start,
            "most_running_in_vllm": self._gauge.stop(),
            "running_in_vllm": [_running_requests(address) for address in self.llm_server_manager.get_addresses()],
            "leases_out": status["total_inflight"],
            "queued": status["queued"],
            "buffered": self._describe_buffer(),
            "carried": len(self.replay_buffer.pool.carried),
            "probes": self._probe_unfinished(),
        }

    def _has_one_update(self, batch: KVBatchMeta) -> bool:
        """Log-probs are compared with the engines' in every step, so that each computes them before its update."""
        return False

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if self.options.importance_sampling is ImportanceSampling.MIXTURE:
            folder = Path(os.environ["INSPECTION_FILE"]).with_name("weighed")
            self.actor_rollout_wg.save_checkpoint(str(folder / "saving"))
            shutil.copytree(folder / "saving", folder / f"version-{self.global_steps - 1}", dirs_exist_ok=True)
        batch = super()._compute_advantage(batch, metrics)
        if self.options.importance_sampling is ImportanceSampling.MIXTURE:
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(WEIGHED_FIELDS))
            rows = [{name: data[name][row] for name in WEIGHED_FIELDS} for row in range(len(batch))]
            torch.save(
                [row | {"session": int(key.split("_")[1])} for row, key in zip(rows, batch.keys, strict=True)],
                folder / f"step-{self.global_steps}.pt",
            )
        note(step=self.global_steps, **self._after_stop, **self._describe_batch(batch))
        return batch

    def _describe_batch(self, batch: KVBatchMeta) -> dict[str, Any]:
        data = store.read_padded(batch, ["response_mask", "policy_versions", "old_log_probs", "rollout_log_probs"])
        newest = (data["policy_versions"] == self.global_steps - 1) & data["response_mask"].bool()
        older = (data["policy_versions"] >= 0) & ~newest & data["response_mask"].bool()
        difference = (data["old_log_probs"] - data["rollout_log_probs"]).abs()
        return {
            "uids": sorted({key.split("_")[0] for key in batch.keys}),
            "trajectories": len(batch.keys),
            "spans": [[list(segment) for segment in tag["segments"]] for tag in batch.tags],
            "unsampled_tok": int((data["policy_versions"] < 0).sum()),
            "max_diff_newest": float(difference[newest].max()) if newest.any() else 0.0,
            "max_diff_older": float(difference[older].max()) if older.any() else 0.0,
        }

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self._kill("training")
        if self.global_steps == self._switches.wait_at:
            note(waits=self.global_steps)
            threading.Event().wait()
        return super()._update_actor(batch, metrics)

    def on_step_end(self) -> None:
        super().on_step_end()
        note(step=self.global_steps, left_of_the_dead=[pid for pid in self._dead if _runs(pid)])

    def _engines_status(self) -> dict[str, Any]:
        return ray.get(self.replay_buffer.manager._balancer.get_status.remote())

    def _most_running(self) -> float:
        return max(_running_requests(address) for address in self.llm_server_manager.get_addresses())

    def _describe_buffer(self) -> list[dict[str, Any]]:
        return [
            {
                "uid": group.uid,
                "age": group.age,
                "finished": sum(trajectory.is_finished for trajectory in group.trajectories),
                "tokens": group.generated_tok,
            }
            for group in self.replay_buffer.pool.buffered
        ]

    def _await_statistics(self) -> None:
        """Until what vLLM counts is what its engines do after the stop.

        An engine core takes requests in order: the first answer follows the aborts, the second the statistics of the
        step in which they took effect.
        """
        for _ in range(2):
            ray.get([server.collective_rpc.remote("check_health") for server in self.llm_server_manager.server_handles])

    def _kill(self, moment: str) -> None:
        for step, when, part, engine in self._switches.deaths:
            if (step, when) == (self.global_steps, moment):
                if moment == "round":
                    self._await_requests()
                self._kill_part(part, engine)

    def _kill_part(self, part: str, engine: int) -> None:
        from recipe.async_dapo_lab.quickstart.fork_server import children  # a copy of this module may run without it

        [replica] = [replica for replica in self.checkpoint_manager.replicas if replica.replica_rank == engine]
        server = psutil.Process(replica.processes[0].pid)
        core = next(child for child in children(server) if "EngineCore" in " ".join(child.cmdline()))
        ranks = [child for child in children(core) if "VLLM::" in " ".join(child.cmdline())]
        victim = {"server": server, "core": core, "exception": core, "rank": ranks[-1] if ranks else None}[part]
        assert victim is not None, "an engine of one rank computes in its core"
        self._dead += [server.pid, core.pid, *(rank.pid for rank in ranks)]
        note(step=self.global_steps, killed=part, engine=engine)
        os.kill(victim.pid, signal.SIGUSR1 if part == "exception" else signal.SIGKILL)

    def _await_requests(self) -> None:
        """Until all engines generate."""
        deadline = time.monotonic() + PATIENCE_S
        while (status := self._engines_status())["is_open"] and time.monotonic() < deadline:
            if all(status["servers"].values()):
                return
            time.sleep(0.05)

    def _probe_unfinished(self) -> list[dict[str, Any]]:
        """Log-probs of buffered, unfinished one-turn trajectories under the weights that have just generated them."""
        rows = [
            (group, trajectory)
            for group in map(with_tokens, self.replay_buffer.pool.buffered)
            for trajectory in group.unfinished
            if len(trajectory.turns) == 1 and trajectory.generated_tok > 0
        ]
        if not rows:
            return []
        rows = list(islice(cycle(rows), NUM_PROBED))
        fields = [self._probe_row(group, trajectory) for group, trajectory in rows]
        keys = [f"probe{i}_0_0" for i in range(len(rows))]
        lengths = [len(row["input_ids"]) for row in fields]
        tags = [{"seq_len": n, "prompt_len": 1, "response_len": n - 1} for n in lengths]
        tq.kv_batch_put(keys=keys, partition_id=PROBE, fields=list_of_dict_to_tensordict(fields), tags=tags)
        batch = KVBatchMeta(partition_id=PROBE, keys=keys, tags=tags)
        batch.extra_info.update({"calculate_entropy": False, "compute_loss": False, "temperature": 1.0})
        self.actor_rollout_wg.compute_log_prob(batch)
        data: TensorDict = tq.kv_batch_get(keys=keys, partition_id=PROBE, select_fields=["log_probs"])
        probes = []
        for (_, trajectory), row, computed in zip(rows, fields, data["log_probs"].unbind(), strict=True):
            response_len = len(row["responses"])
            recorded = torch.tensor(trajectory.turns[0].rollout_log_probs)
            difference = (computed.float()[-response_len - 1 : -1] - recorded).abs()
            spans, start = [], 0
            for version, count in trajectory.stamps:
                spans.append({"version": version, "max_diff": float(difference[start : start + count].max())})
                start += count
            probes.append({"spans": spans})
        tq.kv_clear(keys=keys, partition_id=PROBE)
        return probes

    def _probe_row(self, group: PromptGroup, trajectory: Trajectory) -> dict[str, Any]:
        prompt_ids = self.tokenizer.apply_chat_template(
            list(group.prompt["raw_prompt"]), add_generation_prompt=True, tokenize=True, return_dict=False
        )
        prompts = torch.tensor(prompt_ids)
        responses = torch.tensor(trajectory.raw_response_ids)
        input_ids = torch.cat([prompts, responses])
        return {
            "prompts": prompts,
            "responses": responses,
            "input_ids": input_ids,
            "position_ids": torch.arange(len(input_ids)),
            "response_mask": torch.ones_like(responses),
            "loss_mask": torch.ones_like(responses),
            "multi_modal_inputs": {},
        }


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _running_requests(address: str) -> float:
    """vLLM's own count of running requests, from its metrics page."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_requests_running"))


class Gauge:
    """The most that was read while it watched, ten times a second."""

    def __init__(self, read: Callable[[], float]) -> None:
        self._most = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(read,), daemon=True)
        self._thread.start()

    def stop(self) -> float:
        self._stopped.set()
        self._thread.join()
        return self._most

    def _watch(self, read: Callable[[], float]) -> None:
        while not self._stopped.wait(0.1):
            self._most = max(self._most, read())


def train(config: DictConfig) -> None:
    start_queue(config.transfer_queue)
    trainer_cls: type[AsyncDAPOTrainer] = InspectedTrainer
    if config.async_dapo.placement == "separate":
        from tests.extensions.separate.support.inspected_trainer import InspectedSeparateTrainer  # a copy may lack it

        trainer_cls = InspectedSeparateTrainer
    training.train(config, trainer_cls=trainer_cls)
