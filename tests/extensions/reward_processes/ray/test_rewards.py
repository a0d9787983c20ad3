"""verl's reward workers with reward functions that do all that may be done to them: each call ends for itself."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
from verl.protocol import DataProto

from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.core.users_errors import RaisedElsewhere
from recipe.async_dapo.extensions.reward_processes.pool import RewardProcessDied, RewardProcessKilled
from recipe.async_dapo.extensions.reward_processes.wiring import wire

from ....support.composed_runs import compose_run, valid_overrides, write_files

ComputeScore = Callable[[DataProto], Awaitable[dict[str, Any]]]

TIMEOUT_S = 4.0
PATIENCE_S = 300.0  # what has not ended by then hangs
REWARD_FUNCTION = """
import asyncio, ctypes, os, signal, sys
from pathlib import Path

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    Path(ground_truth, str(os.getpid())).touch()
    match data_source:
        case "hangs":
            ctypes.PyDLL(None).sleep(10**6)  # holds the interpreter, as a regular expression does
        case "interrupts":
            raise KeyboardInterrupt
        case "exits":
            sys.exit(3)
        case "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
    return {"score": 1.0, "acc": 1.0}

async def score_later(**arguments):
    await asyncio.sleep(0.01)
    return compute_score(**arguments)
"""
FAILURES = {
    "hangs": RewardProcessKilled,
    "interrupts": RaisedElsewhere,
    "exits": RaisedElsewhere,
    "dies": RewardProcessDied,
}
REWARD_MANAGER = """
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

class MyManager(NaiveRewardManager):
    async def run_single(self, data):
        assert not self.is_async_reward_score
        return await super().run_single(data)
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> DictConfig:
    folder = tmp_path_factory.mktemp("rewards")
    config = compose_run(valid_overrides(write_files(folder)))
    OmegaConf.resolve(config)
    (folder / "reward.py").write_text(REWARD_FUNCTION)
    (folder / "manager.py").write_text(REWARD_MANAGER)
    return config


def options_of_worker(config: DictConfig, *overrides: str, processes: int | None) -> DictConfig:
    own = [f"async_dapo.reward.timeout_s={TIMEOUT_S}", f"async_dapo.reward.processes={processes or 'null'}"]
    config = OmegaConf.merge(config, OmegaConf.from_dotlist(["reward.num_workers=1", *own, *overrides]))
    wire(config, AsyncDAPOConfig.from_hydra(config))
    return config


def sample(source: str, folder: Path) -> DataProto:
    """A trajectory as verl's agent loop workers send it."""
    ids = torch.ones(1, 4, dtype=torch.int64)
    row: dict[str, Any] = {
        "data_source": source,
        "reward_model": {"ground_truth": str(folder)},
        "extra_info": {"index": 0},
        "tool_extra_fields": {},
    }
    return DataProto(
        batch=TensorDict(
            {"prompts": ids, "responses": ids, "attention_mask": torch.ones(1, 8, dtype=torch.int64)}, batch_size=1
        ),
        non_tensor_batch={key: np.array([value], dtype=object) for key, value in row.items()},
    )


async def score_all(compute_score: ComputeScore, sources: list[str], folder: Path) -> list[Any]:
    async def score(source: str) -> Any:
        try:
            return (await compute_score(sample(source, folder)))["reward_score"]
        except Exception as error:  # all of them are looked at
            return error

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(score(source)) for source in sources]
    return [call.result() for call in calls]


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


KINDS = {
    "plain": ["reward.reward_manager.name=dapo"],
    "coroutine": ["reward.reward_manager.name=dapo", "reward.custom_reward_function.name=score_later"],
    "own manager": ["reward.reward_manager.source=importlib", "reward.reward_manager.name=MyManager"],
}


# What `wire` chooses for each is in `../startup/test_wiring.py`.
@pytest.mark.usefixtures("local_cluster")
@pytest.mark.parametrize(
    "kind", ["plain", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in KINDS if kind != "plain")]
)
def test_given_rewards_that_hang_interrupt_exit_or_die_then_they_alone_fail_and_nothing_outlives_their_worker(
    config, tmp_path, kind
):
    manager = Path(config.reward.custom_reward_function.path).with_name("manager.py")
    options = options_of_worker(config, f"reward.reward_manager.module.path={manager}", *KINDS[kind], processes=2)
    worker = ray.remote(num_cpus=0)(RewardLoopWorker).remote(options, None)
    compute_score = worker.compute_score.remote
    sources = [source for failure in FAILURES for source in (failure, "healthy", "healthy")] * 2

    async def main() -> None:
        results = await score_all(compute_score, sources, tmp_path)
        for source, result in zip(sources, results, strict=True):
            if source == "healthy":
                assert result == 1.0, result
            else:
                assert isinstance(result, FAILURES[source]), (source, result)
        assert isinstance(results[0], TimeoutError)
        assert await score_all(compute_score, ["healthy"] * 50, tmp_path) == [1.0] * 50
        hanging = asyncio.create_task(score_all(compute_score, ["hangs", "healthy"], tmp_path))
        await asyncio.sleep(TIMEOUT_S / 2)
        ray.kill(worker)
        await hanging

    asyncio.run(main())
    deadline = time.monotonic() + PATIENCE_S
    while any(is_running(int(name)) for name in os.listdir(tmp_path)):
        assert time.monotonic() < deadline, "a reward process has outlived its worker"
        time.sleep(0.05)


def test_given_a_coroutine_function_in_verls_own_worker_then_a_call_that_interrupts_or_exits_fails_alone(
    config, tmp_path
):
    """As in an actor: the loop of the process runs all calls."""
    options = options_of_worker(config, *KINDS["coroutine"], processes=None)

    async def main() -> list[Any]:
        worker = RewardLoopWorker(options, None)
        return await score_all(worker.compute_score, ["interrupts", "healthy", "exits", "healthy"], tmp_path)

    results = asyncio.run(main())
    assert results[1::2] == [1.0, 1.0] and all(isinstance(one, RaisedElsewhere) for one in results[::2])
    assert results[0].summary.startswith("KeyboardInterrupt() at reward.py:")
    assert os.listdir(tmp_path) == [str(os.getpid())]
