"""Agent loops are what verl's own worker would make."""

import sys
import threading

import pytest
from omegaconf import OmegaConf
from verl.experimental.agent_loop import AgentLoopWorker
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.rollout import agent_loops, import_loops, run_worker, worker
from recipe.async_dapo.rollout.agent_loops import AgentLoopFactory
from recipe.async_dapo.runtime import logs

from ..support.composed_runs import compose_run, valid_overrides


class EchoLoop:
    def __init__(self, tools: list[str], extra: object = None, name: str = "") -> None:
        self.tools, self.extra = tools, extra


class Helper:
    pass


@pytest.fixture
def registry(monkeypatch):
    def register(**config: object) -> AgentLoopFactory:
        target = {"_target_": f"{__name__}.EchoLoop"}
        monkeypatch.setitem(_agent_loop_registry, "echo", OmegaConf.create(target | config))
        return AgentLoopFactory(tools=["calculator"])

    return register


def test_every_trajectory_gets_its_own_agent_loop_with_the_worker_s_parts(registry) -> None:
    factory = registry(name="echo", extra=3)
    first, second = factory.make("echo"), factory.make("echo")
    assert first is not second
    assert (first.tools, first.extra) == (second.tools, second.extra) == (["calculator"], 3)


def test_objects_in_the_configuration_are_not_shared_between_trajectories(registry) -> None:
    factory = registry(extra={"_target_": f"{__name__}.Helper"})
    first, second = factory.make("echo"), factory.make("echo")
    assert isinstance(first.extra, Helper) and first.extra is not second.extra


def test_hydra_s_own_keys_keep_their_meaning(registry) -> None:
    loop = registry(_convert_="all", extra=4).make("echo")
    assert (loop.tools, loop.extra) == (["calculator"], 4)


def test_a_worker_has_imported_the_users_loops_before_its_first_trajectory(monkeypatch, tmp_path, caplog) -> None:
    """It would stop the worker's event loop for as long as that takes; one that is not used need not be there."""
    monkeypatch.setattr(AgentLoopWorker, "__init__", lambda self, config: setattr(self, "config", config))
    for name in ("show_logs", "join_queue"):
        monkeypatch.setattr(run_worker, name, lambda: None)
    (tmp_path / "loop_of_a_user.py").write_text("class Own: pass")
    monkeypatch.syspath_prepend(tmp_path)
    for number, module in enumerate(("no_such_module", "loop_of_a_user")):
        monkeypatch.setitem(_agent_loop_registry, f"own-{number}", {"_target_": f"{module}.Own"})
    try:
        worker.AsyncDAPOAgentLoopWorker(compose_run(valid_overrides(tmp_path)))
        assert "loop_of_a_user" in sys.modules and "no_such_module" not in caplog.text
    finally:
        sys.modules.pop("loop_of_a_user", None)


@pytest.mark.parametrize("uses_it", [True, False])
def test_a_loop_that_hangs_as_it_is_imported_holds_up_a_start_that_uses_it_alone(
    monkeypatch, tmp_path, uses_it
) -> None:
    """The file of agent loops may name loops that no prompt of the run has."""
    name, let_go = f"hanging_{uses_it}", threading.Event()
    monkeypatch.setattr(sys, "let_go", let_go, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{name}.py").write_text("import sys\nsys.let_go.wait()\n")
    monkeypatch.setattr(import_loops, "_agent_loop_registry", {"own": {"_target_": f"{name}.Loop"}})
    monkeypatch.setattr(import_loops, "OTHERS_LIMIT_S", 0.01)
    monkeypatch.setattr(logs, "SLOW_S", 0.01)
    told, is_told = list[str](), threading.Event()

    def warn(text: str, *values: object) -> None:
        told.append(text % values)
        is_told.set()

    monkeypatch.setattr(import_loops.logger, "warning", warn)
    monkeypatch.setattr(logs.logger, "error", warn)
    start = threading.Thread(target=import_loops.import_loops, args=["own" if uses_it else "another"])
    start.start()
    try:
        assert is_told.wait(300)
        start.join(0.1 if uses_it else None)
        assert start.is_alive() is uses_it
        waits = f"the start waits for the import of {name}, the module of agent loop own, for 0.01 s by now"
        goes_on = f"an agent loop's module {name} is not imported after 0.01 s; the run goes on"
        assert told[-1] == (waits if uses_it else goes_on)
    finally:
        let_go.set()
        start.join()


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no_such_loop: no such agent loop; choose one of .*single_turn_agent"):
        AgentLoopFactory().make("no_such_loop")


def test_a_loop_that_cannot_be_made_is_an_error_and_no_failed_prompt(registry) -> None:
    with pytest.raises(ConfigError, match=r"agent=echo: this agent loop cannot be made on node .*no_such_option"):
        registry(no_such_option=1).make("echo")
    with pytest.raises(ConfigError, match=r"agent=echo: this agent loop cannot be made on node .*no_such_module"):
        registry(_target_="no_such_module.Loop").make("echo")


@pytest.mark.parametrize("state", [{"keeps_state": True}, {"replayable": False}])
def test_a_loop_with_a_state_is_made_where_the_copy_can_keep_it_alone(registry, monkeypatch, state) -> None:
    [(name, value)] = state.items()
    monkeypatch.setattr(EchoLoop, name, value, raising=False)
    monkeypatch.setattr(agent_loops, "declared", lambda: {"agents": None})
    registry().make("echo")
    monkeypatch.setattr(agent_loops, "declared", dict)
    refused = r"agent=echo: its loops keep a state over the stop: extensions/agents is not in this copy; copy that"
    with pytest.raises(ConfigError, match=refused):
        registry().make("echo")
