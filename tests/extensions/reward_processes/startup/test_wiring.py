"""verl is given a function that hands calls to processes; the user's is what runs in them."""

import asyncio
import functools

import pytest

from recipe.async_dapo.config.extensions import chosen
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.core.users_errors import RaisedElsewhere
from recipe.async_dapo.extensions.reward_processes import wiring
from recipe.async_dapo.extensions.reward_processes.wiring import wire
from recipe.async_dapo.startup.preflight import check_all
from recipe.async_dapo.startup.rules import check_options

from ....support.composed_runs import write_reward

ECHO = """
def compute_score(solution_str, scale, reward_router_address=None, **_):
    return {"score": 1.0, "acc": scale, "solution": solution_str, "router": reward_router_address}
"""
REMOTE = "reward.reward_manager.name=remote"


def isolated(config):
    options = AsyncDAPOConfig.from_hydra(config)
    if "reward_processes" in chosen(config):
        wire(config, options)
    assert AsyncDAPOConfig.from_hydra(config).reward_function == options.reward_function
    return config.reward.custom_reward_function


@pytest.mark.parametrize(("overrides", "manager"), [([], "dapo"), ([REMOTE], "naive")])
def test_verls_managers_have_a_coroutine_function_and_the_one_that_takes_none_is_another(run, overrides, manager):
    config = run(*overrides)
    path = config.reward.custom_reward_function.path
    custom = isolated(config)
    assert (custom.path, custom.name) == (f"pkg://{wiring.__name__}", "compute_score")
    assert custom.reward_kwargs.isolated.function.path == path
    assert config.reward.reward_manager.name == manager


USERS = "reward.reward_manager.source=importlib"
NUMBER = "async_dapo.reward.processes=4"


@pytest.mark.parametrize(
    ("kind", "overrides", "name"),
    [
        ("def", [USERS], "compute_score_blocking"),
        ("async def", [], "compute_score_here"),
        ("async def", [USERS], "compute_score_here"),
        ("async def", [NUMBER], "compute_score"),
        ("async def", [USERS, NUMBER], "compute_score"),
        ("async def", [REMOTE], "compute_score_here"),
    ],
)
def test_a_coroutine_function_stays_in_verls_worker_and_the_users_manager_has_the_kind_it_knows(
    run, tmp_path, kind, overrides, name
):
    path = write_reward(tmp_path, "return 1.0", kind=kind)
    config = run(f"reward.custom_reward_function.path={path}", *overrides)
    assert isolated(config).name == name
    limit_s = AsyncDAPOConfig.from_hydra(config).reward.call_limit_s
    assert (limit_s is None) == (name != "compute_score_here"), "without a process its worker may be blocked"


def test_without_a_function_verls_own_is_isolated_and_a_sandbox_is_left_to_verl(run):
    config = run("reward.custom_reward_function.path=null")
    function = isolated(config).reward_kwargs.isolated.function
    assert (function.path, function.name) == ("pkg://verl.utils.reward_score", "default_compute_score")
    config = run("reward.custom_reward_function.path=null", "reward.sandbox_fusion.url=http://sandbox")
    assert isolated(config).path is None


@pytest.mark.parametrize("overrides", [[], ["reward.custom_reward_function.path=null"]])
def test_a_sandbox_that_is_null_is_none(run, overrides):
    config = run("reward.sandbox_fusion=null", *overrides)
    check_options(config, AsyncDAPOConfig.from_hydra(config))
    assert isolated(config).path == f"pkg://{wiring.__name__}"


def test_without_processes_all_is_left_to_verl_and_the_time_limit_is_that_of_the_whole_call(run):
    config = run("async_dapo.reward.processes=0")
    path = config.reward.custom_reward_function.path
    assert isolated(config).path == path
    options = AsyncDAPOConfig.from_hydra(config).reward
    assert options.call_limit_s == options.timeout_s


@pytest.mark.parametrize(
    ("scale", "value"), [("3", 3), ("${data.max_response_length}", 32), ("'${oc.decode:${oc.env:A_SCALE}}'", 7)]
)
def test_arguments_that_are_the_same_in_every_call_arrive_and_the_users_come_first(
    run, tmp_path, monkeypatch, scale, value
):
    monkeypatch.setenv("A_SCALE", "7")
    path = tmp_path / "reward.py"
    path.write_text(ECHO)
    config = run(
        f"reward.custom_reward_function.path={path}",
        f"+reward.custom_reward_function.reward_kwargs={{scale: {scale}, solution_str: theirs}}",
        "async_dapo.reward.processes=5",
    )
    check_all(config)
    settings = isolated(config).reward_kwargs.isolated
    monkeypatch.setattr(wiring, "_processes", None)
    call = {
        "data_source": "",
        "solution_str": "",
        "ground_truth": "",
        "extra_info": {},
        "reward_router_address": "here",
    }

    async def main():
        return await wiring.compute_score(isolated=settings, **call)

    expected = {"score": 1.0, "acc": value, "solution": "theirs", "router": "here"}
    assert asyncio.run(main()) == wiring.compute_score_blocking(isolated=settings, **call) == expected
    assert wiring._processes._threads._max_workers == 5
    wiring._processes.close()


NO_NUMBER = "which is no number and has none as `score`"
WAITS = """
import asyncio

async def compute_score(solution_str, scale):
    match solution_str:
        case "waits":
            await asyncio.sleep(10**6)
        case "interrupts":
            raise KeyboardInterrupt
        case "nothing":
            return None
    return {"score": scale, "answer": object}
"""


def test_a_coroutine_function_without_a_process_ends_at_its_limit_and_returns_plain_data(run, tmp_path):
    path = tmp_path / "reward.py"
    path.write_text(WAITS)
    kwargs = "+reward.custom_reward_function.reward_kwargs={scale: 3}"
    config = run(f"reward.custom_reward_function.path={path}", kwargs, "async_dapo.reward.timeout_s=1")
    score = functools.partial(wiring.compute_score_here, isolated=isolated(config).reward_kwargs.isolated)
    assert asyncio.run(score(solution_str="", scale=1)) == {"score": 3, "answer": "<class 'object'>"}
    for answer, error, text in (
        ("waits", TimeoutError, "no answer within 1.0 s"),
        ("interrupts", RaisedElsewhere, "KeyboardInterrupt() at reward.py:9"),
        (
            "nothing",
            RaisedElsewhere,
            "compute_score of reward.py returns None, which is no number and has none as `score`",
        ),
    ):
        with pytest.raises(error) as raised:
            asyncio.run(score(solution_str=answer))
        assert str(raised.value) == text

    async def limited_from_outside() -> None:
        async with asyncio.timeout(0.05):
            await score(solution_str="waits")

    with pytest.raises(TimeoutError):  # a manager's own limit
        asyncio.run(limited_from_outside())
