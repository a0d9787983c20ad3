"""Whatever the user's code raises is an error of its call: never the end of an event loop, never silence."""

import asyncio
import gc
import re
import threading
import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.tools.schemas import OpenAIFunctionToolSchema

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.rollout.agent_loops import AgentLoopFactory
from recipe.async_dapo.runtime.containment import CodeExited, Contained, Interrupted, contain_tasks, contained, value_of

from ..support.simulation import settle, simulate

SCHEMA = OpenAIFunctionToolSchema(
    type="function", function={"name": "tool", "description": "", "parameters": {"type": "object", "properties": {}}}
)


@pytest.fixture(autouse=True)
def hook_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)


class Own(BaseException):
    """The user's."""


exits = pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Own("a")], ids=repr)


def plain(error: BaseException, **_: Any) -> Any:
    raise error


async def awaited(error: BaseException, **_: Any) -> Any:
    await asyncio.sleep(1)
    raise error


async def gathered(error: BaseException, **_: Any) -> Any:
    """As verl's tool agent loop makes its calls."""
    return await asyncio.gather(awaited(error))


kinds = pytest.mark.parametrize("raises", [plain, awaited, gathered])


@exits
def test_given_an_agent_loop_whose_constructor_exits_then_it_is_refused_by_name(error):
    factory = AgentLoopFactory()
    factory._constructors["mine"] = partial(plain, error)
    with pytest.raises(ConfigError, match=f"mine: this agent loop cannot be made .*{re.escape(repr(error))}"):
        factory.make("mine")


@exits
def test_given_a_task_of_the_user_s_that_exits_when_an_actor_contains_its_tasks_then_its_event_loop_goes_on(error):
    async def main() -> str:
        contain_tasks()
        task = asyncio.create_task(awaited(error))
        with pytest.raises(CodeExited, match=re.escape(repr(error))):
            await task
        return "goes on"

    assert simulate(main()) == "goes on"


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration(3)], ids=repr)
def test_given_a_plain_reward_function_in_verl_s_worker_that_raises_what_no_future_holds_then_its_call_fails(error):
    tokenizer = SimpleNamespace(decode=lambda ids, **_: "4")
    columns = {"data_source": ["sums"], "reward_model": [{"ground_truth": "4"}], "extra_info": [{}]}
    tensors = {
        "responses": torch.ones((1, 2), dtype=torch.long),
        "attention_mask": torch.ones((1, 3), dtype=torch.long),
    }
    answered = DataProto.from_dict(tensors, {name: np.array(column, dtype=object) for name, column in columns.items()})

    async def main() -> None:
        contain_tasks()
        manager: Any = NaiveRewardManager(OmegaConf.create({}), tokenizer, partial(plain, error))
        with pytest.raises((CodeExited, RuntimeError), match=re.escape(repr(error))):
            await asyncio.wait_for(manager.run_single(answered), 30)

    asyncio.run(main())


async def test_given_a_cancellation_or_a_signal_when_code_is_contained_then_it_goes_through():
    task = asyncio.create_task(value_of(partial(asyncio.sleep, 100)))
    await settle()
    task.cancel("ours")
    with pytest.raises(asyncio.CancelledError, match="ours"):
        await task
    for error in (Interrupted(), KeyError("a"), StopIteration(), RayExit()):
        with pytest.raises(type(error)) as raised, contained():
            raise error
        assert raised.value is error


class RayExit(SystemExit):
    """How Ray ends the process that it has asked to end."""

    ray_terminate_msg = "The process receives a SIGTERM."


def test_given_a_contained_coroutine_that_is_closed_or_never_begun_then_nothing_is_said():
    closed: list[type[BaseException]] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            closed.append(type(error))
            raise

    async def main() -> None:
        begun = value_of(waits)
        begun.send(None)
        begun.close()
        never = asyncio.get_running_loop().create_task(Contained(waits()))  # type: ignore[arg-type]
        never.cancel()
        with pytest.raises(asyncio.CancelledError):
            await never

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        simulate(main())
        gc.collect()
    assert closed == [GeneratorExit] and not [one for one in warned if "never awaited" in str(one.message)]
