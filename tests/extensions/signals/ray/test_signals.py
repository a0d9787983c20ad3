"""Signals to a driver that waits within Ray. It, and the actor's process, are forks of the tests' server."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from recipe.async_dapo_lab.quickstart.activation import SMALL_RAY

from ....support.fork_server import executable
from ....support.real_actors import PATIENCE_S
from ....support.signals import as_in_the_foreground

REPOSITORY = Path(__file__).parents[4]

# A run as far as signals are concerned: the driver waits within Ray for an actor that trains.
DRIVER = """
import sys, threading, time
from pathlib import Path
from recipe.async_dapo_lab.own_ray import end_ray_with_this_process, prepare_own_ray
prepare_own_ray()
end_ray_with_this_process()
import ray
from omegaconf import OmegaConf
from recipe.async_dapo.extensions.signals import noted_step
from recipe.async_dapo.extensions.signals.noted_step import note_step
from recipe.async_dapo.extensions.signals.told import told_how_to_go_on
from recipe.async_dapo.main_async_dapo import explained
from recipe.async_dapo.runtime.interruption import stay_interruptible
from recipe.async_dapo.record.checkpoint_folder import saving

folder, place, python = Path(sys.argv[1]), *sys.argv[2:]
noted_step.PATIENCE_S = 300.0  # for a busy machine to say which step it was


def train(folder, place):
    with saving(folder / "global_step_4", []):
        pass
    note_step(7, 300)
    if place == "in a save":
        with saving(folder / "global_step_6", []):
            (folder / "reached").touch()
            time.sleep(600)
    (folder / "reached").touch()
    time.sleep(600)


trainer = {"default_local_dir": str(folder), "save_freq": 2, "resume_mode": "auto"}
with explained(), told_how_to_go_on(OmegaConf.create({"trainer": trainer})):
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=100_000_000,
        _temp_dir=str(folder / "r"),
        runtime_env={"py_executable": python},
    )
    stay_interruptible()
    ray.get(ray.remote(train).remote(folder, place))
"""


@pytest.mark.parametrize(
    ("number", "place"),
    [
        (signal.SIGTERM, "in a save"),
        (signal.SIGINT, "in a step"),
        pytest.param(signal.SIGTERM, "in a step", marks=pytest.mark.nightly),  # both are in one of the others
    ],
)
def test_given_a_signal_when_the_driver_waits_in_ray_then_it_says_where_the_run_was_and_what_goes_on(number, place):
    with tempfile.TemporaryDirectory(prefix="s", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        arguments = ["-c", DRIVER, name, place, shlex.quote(executable())]
        driver = subprocess.Popen(
            [executable(), *arguments],
            cwd=REPOSITORY,
            env=os.environ | SMALL_RAY | {"PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=as_in_the_foreground,
        )
        deadline_s = time.monotonic() + PATIENCE_S
        while not (folder / "reached").exists():  # another process has no event for it
            assert driver.poll() is None and time.monotonic() < deadline_s, driver.communicate()[1]
            time.sleep(0.05)
        driver.send_signal(number)
        _, said = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == 128 + number, said
    words = f"async_dapo: interrupted in step 7 of 300; {folder}/global_step_4 is saved\nTo go on from there: "
    assert words + shlex.join([sys.executable, *arguments]) in said
    assert "Traceback" not in said and "SIGTERM received" not in said
