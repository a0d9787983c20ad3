"""What the gateway costs, in one process that stands for a worker, beside a model that answers at once: CPU time of a
trajectory, and what many sessions take that are open at the same time. No Ray, no engine.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pandas as pd
import psutil
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.workers.rollout.replica import TokenOutput

from examples.agent_loop.dialogue import Dialogue
from recipe.async_dapo.extensions.agent_programs.agent_host import AgentHost
from recipe.async_dapo.extensions.gateway.black_box import BlackBoxAgent
from recipe.async_dapo.extensions.http.server import AgentServer
from recipe.async_dapo_lab.quickstart.tiny_model import build_tokenizer

QUESTION = [{"role": "user", "content": "47+4*03"}]
TURNS, TRAJECTORIES, AT_ONCE, OPEN = 2, 300, 32, 1000
AGENTS = {"bare HTTP": "bare", "one SDK client": "by_sdk", "an SDK client each": "by_own_sdk"}


class Model:
    """Answers at once, or when so many requests are there."""

    def __init__(self, tokenizer: Any) -> None:
        self._answer = [*tokenizer.encode("03:1'5 02:5_5 01:9_5"), tokenizer.eos_token_id]
        self.requests, self.gate, self.all_there = 0, 0, asyncio.Event()

    async def generate(self, **_: Any) -> TokenOutput:
        self.requests += 1
        if self.requests >= self.gate:
            self.all_there.set()
        await self.all_there.wait()
        return TokenOutput(token_ids=list(self._answer), log_probs=[-0.1] * len(self._answer), extra_fields={})


class Worker:
    """This process, and its process of agents."""

    def __init__(self) -> None:
        self.tokenizer = build_tokenizer()
        self.model = Model(self.tokenizer)
        limits = {"response_length": 4000, "prompt_length": 1000, "multi_turn": {"format": "hermes"}}
        self._config = OmegaConf.create({"actor_rollout_ref": {"rollout": limits}, "data": {}})

    def box(self, agent: str) -> BlackBoxAgent:
        return BlackBoxAgent(
            trainer_config=DictConfigWrap(self._config),
            server_manager=self.model,
            tokenizer=self.tokenizer,
            processor=None,
            dataset_cls=None,
            data_config=DictConfigWrap(self._config.data),
            hf_model_type="qwen3",
            agent=f"benchmarks.gateway.agents:{agent}",
        )

    async def through_gateway(self, agent: str, turns: int = TURNS) -> None:
        [row] = await self.box(agent).run({"logprobs": True}, raw_prompt=QUESTION, turns=turns)
        assert sum(row.response_mask) == turns * len(self.model._answer)

    async def inside(self) -> None:
        dialogue = Dialogue(self.box("bare"), QUESTION, {"logprobs": True})
        for turn in range(TURNS):
            await dialogue.ask()
            if turn < TURNS - 1:
                await dialogue.tell("Check it.")


def _processes() -> Iterator[psutil.Process]:
    own = psutil.Process()
    return iter([own, *own.children(recursive=True)])


def _cpu_s() -> float:
    """Of this process and of its agents."""
    return sum(sum(one.cpu_times()[:2]) for one in _processes())


async def _trajectories(what: str, one: Callable[[], Awaitable[None]]) -> dict[str, Any]:
    await one()  # imports, connections, processes
    places = asyncio.Semaphore(AT_ONCE)

    async def placed() -> None:
        async with places:
            await one()

    cpu_s, began_s = _cpu_s(), time.monotonic()
    await asyncio.gather(*[placed() for _ in range(TRAJECTORIES)])
    spent = {"cpu_ms": 1e3 * (_cpu_s() - cpu_s) / TRAJECTORIES, "wall_s": time.monotonic() - began_s}
    return {"what": f"{what}, a trajectory of {TURNS} turns", "count": TRAJECTORIES, **spent}


async def _open_sessions(worker: Worker) -> dict[str, Any]:
    """All of them have a request out at the same time; then each has its reply, and ends."""
    await worker.through_gateway("bare", 1)
    [own, agents], model = list(_processes()), worker.model
    before = [(one.memory_info().rss, one.num_fds()) for one in (own, agents)]
    model.gate, model.all_there = model.requests + OPEN, asyncio.Event()
    began_s = time.monotonic()
    sessions = [asyncio.create_task(worker.through_gateway("bare", 1)) for _ in range(OPEN)]
    await model.all_there.wait()
    opened_s = time.monotonic() - began_s
    after = [(one.memory_info().rss, one.num_fds()) for one in (own, agents)]
    await asyncio.gather(*sessions)
    (worker_mib, worker_files), (agents_mib, agents_files) = (
        ((rss - rss_before) / 2**20, files - files_before)
        for (rss, files), (rss_before, files_before) in zip(after, before, strict=True)
    )
    return {
        "what": "sessions open at once",
        "count": OPEN,
        "open_s": opened_s,
        "wall_s": time.monotonic() - began_s,
        "worker_mib": worker_mib,
        "agents_mib": agents_mib,
        "worker_files": worker_files,
        "agents_files": agents_files,
    }


async def measure() -> pd.DataFrame:
    worker = Worker()
    found = [await _open_sessions(worker), await _trajectories("inside", worker.inside)]
    worker.model.gate = 0
    for name, agent in AGENTS.items():
        found.append(await _trajectories(f"gateway, {name}", partial(worker.through_gateway, agent)))
    await (await AgentServer.at("127.0.0.1")).stop()
    await AgentHost.of("functions").stop()
    return pd.DataFrame(found)
