"""Starts the script under test with an environment of its own, and looks at what it leaves."""

import os
import signal
import subprocess
import sys
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from .fake_hub import Hub, published_rows
from .signals import as_in_the_foreground

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "recipe" / "async_dapo" / "prepare_dapo_data.sh"
RUN_TIMEOUT_S = 60

READY = {"train.parquet", "train.parquet.sha256"}
PART = "train.parquet.download.part"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    status: int
    log: str


class Runner:
    """Runs the script with a clean environment; keyword arguments are environment variables, None unsets."""

    def __init__(self, data_home: Path, hub: Hub, pins: Path) -> None:
        self.data_home = data_home
        self.pins = pins
        self.environment: dict[str, str] = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ["HOME"],
            "LC_ALL": "C",
            "DATA_HOME": str(data_home),
            "HF_ENDPOINT": hub.endpoint,
            "DAPO_DATA_PINS": str(pins),
            "PYTHON": sys.executable,
            "DOWNLOAD_RETRY_DELAY_S": "0",
            "DOWNLOAD_STALL_TIMEOUT_S": "600",
        }
        self._processes: list[subprocess.Popen] = []

    def start(self, *arguments: str, script: Path = SCRIPT, **changes: str | None) -> subprocess.Popen:
        environment = {k: v for k, v in (self.environment | changes).items() if v is not None}
        process = subprocess.Popen(
            ["bash", str(script), *arguments],
            env=environment,
            cwd=self.pins.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=as_in_the_foreground,
        )
        self._processes.append(process)
        return process

    def finish(self, process: subprocess.Popen) -> Finished:
        log, _ = process.communicate(timeout=RUN_TIMEOUT_S)
        return Finished(status=process.returncode, log=log)

    def __call__(self, *arguments: str, script: Path = SCRIPT, **changes: str | None) -> Finished:
        return self.finish(self.start(*arguments, script=script, **changes))

    def files(self) -> set[str]:
        """What is in DATA_HOME, without the lock."""
        found = {path.name for path in self.data_home.iterdir()} if self.data_home.exists() else set()
        return found - {".prepare_dapo_data.lock"}

    def kill_all(self) -> None:
        for process in self._processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.communicate(timeout=RUN_TIMEOUT_S)


def assert_ready(prepare: Runner) -> None:
    """The one published file is there, each of its prompts once."""
    assert prepare.files() == READY
    assert pq.read_table(prepare.data_home / "train.parquet").to_pylist() == published_rows(prompts=5, copies=1)


def assert_refused(prepare: Runner, *said: str, left: Set[str] = frozenset(), **changes: str | None) -> None:
    """It ends with an error that says so, and leaves these files."""
    run = prepare(**changes)
    assert run.status == 1 and all(words in run.log for words in said), run.log
    assert prepare.files() == left
