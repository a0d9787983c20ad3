"""For `pytest -p`: writes which tests have called which probed functions, and which have failed, to MUTANTS_FILE."""

import builtins
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_called: set[int] = set()
_seen: dict[str, dict[str, object]] = {}

builtins.CALLED = _called.add  # type: ignore[attr-defined]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _called.clear()
    _seen[item.nodeid] = {"failed": False}
    yield
    _seen[item.nodeid]["called"] = sorted(_called)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _seen[report.nodeid]["failed"] = True


def pytest_sessionfinish() -> None:
    Path(os.environ["MUTANTS_FILE"]).write_text(json.dumps(_seen))
