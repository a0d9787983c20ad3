from ....support.fixtures.coroutines import engines_are_killed_as_stand_ins  # noqa: F401 (first of all)

# isort: split

import inspect
from typing import Any

import pytest

from ....support.simulation import VirtualTimeLoop, simulate


class InlineExecutorLoop(VirtualTimeLoop):
    """verl tokenizes in threads; here that takes no time."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs on the loop of virtual time."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    simulate(pyfuncitem.obj(**arguments), loop_class=InlineExecutorLoop)
    return True
