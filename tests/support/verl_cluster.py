"""verl's own trainer modes on virtual time: its replay buffers, servers and continuing client, on emulated engines.

What is played is the trainer's loop, which verl has in Ray actors, and TransferQueue, of which groups are tags.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import replay_buffer as verl_buffers
from verl.utils import normalize_token_ids
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

from recipe.async_dapo_lab.plan.engine import Engine
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.systems import TrainerPasses
from recipe.async_dapo_lab.rehearsal.engine import EmulatedEngine
from recipe.async_dapo_lab.rehearsal.options import CompressedClock

from .emulated_cluster import LATENCY_S, PlannedBook
from .fakes import FakeHandle
from .scripted_engine import start_server
from .simulation import VirtualTimeLoop, end_all

SYNC, COLOCATE = "sync", "colocate_async"
MAX_VERSIONS = 8  # `trainer.v1.sampler.max_off_policy_threshold`
PAUSE_S = 1.0  # before an interrupted request is sent again, in `FullyAsyncLLMServerClient`
LOOK_S = 0.02
GATE_S = 60.0  # how long verl's server waits for requests that are not in the batch yet, before it aborts


class FakeQueue:
    """TransferQueue as far as verl's replay buffer asks it: keys and tags, and the metric of a trajectory."""

    def __init__(self) -> None:
        self.tags: dict[str, dict[str, Any]] = {}
        self.metrics: dict[str, float] = {}

    def kv_list(self) -> dict[str, dict[str, Any]]:
        return {"train": {key: dict(tag) for key, tag in self.tags.items()}}

    def kv_clear(self, *, partition_id: str, keys: list[str]) -> None:
        for key in keys:
            self.tags.pop(key, None)

    def kv_batch_get(self, *, keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        assert select_fields == ["extra_fields"]
        return {"extra_fields": [{"reward_extra_info": {"acc": self.metrics[key]}} for key in keys]}


class ContinuingClient(LLMServerClient):
    """What verl's `FullyAsyncLLMServerClient` does for responses of text, without waiting for real seconds."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        prompt_ids = normalize_token_ids(prompt_ids)
        whole = TokenOutput(token_ids=[], log_probs=[], num_preempted=0)
        while True:
            left_tok = sampling_params["max_tokens"] - len(whole.token_ids)
            part = await super().generate(
                request_id,
                prompt_ids=prompt_ids + whole.token_ids,
                sampling_params=sampling_params | {"max_tokens": left_tok},
                **kwargs,
            )
            whole.token_ids += part.token_ids
            if len(part.token_ids) >= left_tok or part.stop_reason != "aborted":
                return whole
            await asyncio.sleep(PAUSE_S)


class EmulatedVerlServer(vLLMHttpServer):
    """verl's server on an emulated engine. Requests that wait inside the engine are not admitted yet: verl's server
    waits for them before it aborts."""

    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> dict[str, Any]:
        self._submission_paused = True
        self._rejecting = reject_request
        self._resume_event.clear()
        engine: EmulatedEngine = self.engine
        ends_s = asyncio.get_running_loop().time() + GATE_S
        while engine._unadmitted and asyncio.get_running_loop().time() < ends_s:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(LOOK_S)
        for running in list(engine._unadmitted):
            engine._admit(running)
        return await super().abort_all_requests(reset_prefix_cache, reject_request)


class PausableEngine(EmulatedEngine):
    """Aborts and goes on as verl's server asks for it, in which this recipe's server has other ways."""

    async def pause_generation(self, **_: Any) -> None:
        await self.abort(list(self._running))
        await asyncio.sleep(0)  # those who wait for tokens take them first, as with vLLM

    async def resume_generation(self) -> None:
        pass


class VerlCluster:
    """Args:
    scenario: what the engines emulate; prompts have two tokens.
    passes: the trainer's seconds.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, scenario: Scenario, mode: str, *, passes: TrainerPasses
    ) -> None:
        self.loop = VirtualTimeLoop()
        asyncio.set_event_loop(self.loop)
        self.scenario, self.mode = scenario, mode
        self.passes, self.queue, self.book = passes, FakeQueue(), PlannedBook(scenario)
        self.step_number = self.num_drawn = 0
        self.servers = [self._start_server(monkeypatch) for _ in range(scenario.num_servers)]
        named = {f"server-{k}": FakeHandle(server, latency_s=LATENCY_S) for k, server in enumerate(self.servers)}
        balancer = FakeHandle(GlobalRequestLoadBalancer(named), latency_s=LATENCY_S)
        kind = LLMServerClient if mode == SYNC else ContinuingClient
        rollout = SimpleNamespace(name="vllm", response_length=scenario.max_response_length)
        config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
        self.client = kind(config, balancer)
        monkeypatch.setattr(verl_buffers, "tq", self.queue)
        monkeypatch.setattr(verl_buffers, "time", SimpleNamespace(time=self.loop.time, sleep=self.run_for))
        self.buffer = (verl_buffers.ReplayBuffer if mode == SYNC else verl_buffers.ReplayBufferAsync)(
            mode,
            None,
            MAX_VERSIONS,
            "drop",
            None,
            refill_fn=self._submit,
            filter_groups_metric="acc",
            train_batch_size=scenario.train_batch_size,
            gen_batch_size=1,
        )

    def run_for(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def step(self) -> float:
        """As the modes' trainers. Returns the seconds of the step."""
        began_s, batch = self.loop.time(), self.scenario.train_batch_size
        self.step_number += 1
        if self.step_number == 1 and self.mode != SYNC:
            self._submit(batch)
        self._submit(batch)
        sampled, _ = self.buffer.sample(self.step_number, "train", batch)
        if self.mode == COLOCATE:
            for server in self.servers:
                self.loop.run_until_complete(server.abort_all_requests())
        self._train(sampled)
        self.run_for(self.scenario.update_s)
        for server in self.servers:
            self.loop.run_until_complete(server.set_global_steps(self.step_number))
            if self.mode != SYNC:
                self.loop.run_until_complete(server.resume_generation())
        return self.loop.time() - began_s

    def close(self) -> None:
        end_all(self.loop)

    def _train(self, sampled: KVBatchMeta) -> None:
        tags = [{"segments": [(0, tag["length_tok"])], "min_global_steps": 0, "age": 0} for tag in sampled.tags]
        assert len(tags) == self.scenario.train_batch_size * self.scenario.rollout_n
        self.run_for(sum(self.passes.seconds(tags, [])))
        self.queue.kv_clear(partition_id="train", keys=sampled.keys)

    def _submit(self, count: int) -> None:
        for number in range(self.num_drawn, self.num_drawn + count):
            uid = f"prompt-{number}"
            self.queue.tags[uid] = {"is_prompt": True, "status": "running", "global_steps": self.step_number}
            self.loop.create_task(self._generate_group(uid, number), name=f"remote {uid}")
        self.num_drawn += count

    async def _generate_group(self, uid: str, number: int) -> None:
        n = self.scenario.rollout_n
        outputs = await asyncio.gather(*(self._generate(uid, number, session) for session in range(n)))
        for session, length_tok in enumerate(outputs):
            key = f"{uid}_{session}_0"
            self.queue.metrics[key] = self.book.planned[number].metrics[session]
            self.queue.tags[key] = {"length_tok": length_tok}
        self.queue.tags[uid]["status"] = "finished"

    async def _generate(self, uid: str, number: int, session: int) -> int:
        params = {"max_tokens": self.scenario.max_response_length, "logprobs": True}
        output = await self.client.generate(f"{uid}-{session}", prompt_ids=[number, session], sampling_params=params)
        return len(output.token_ids)

    def _start_server(self, monkeypatch: pytest.MonkeyPatch) -> EmulatedVerlServer:
        clock = CompressedClock(1.0, origin_s=0.0, real_s=self.loop.time)
        model = Engine(self.scenario.step_cost(), max_num_seqs=self.scenario.max_num_seqs)
        engine = PausableEngine(model, self.book, clock)
        made = start_server(monkeypatch, engine)  # leaves verl's constructor without Ray and a model
        assert isinstance(made, vLLMHttpServer)
        server = object.__new__(EmulatedVerlServer)
        server.__dict__ |= made.__dict__ | {"engine": engine, "lora_as_adapter": False}
        server._rejecting, server._resume_event = False, asyncio.Event()
        return server
