"""A Ray cluster that a run starts for itself, and how often its processes look for reference cycles.

The cluster is on one node, and ends with the run. It listens on this machine's loopback address only: what reaches a
port of Ray, of torch's stores or of vLLM can run code in the job. Its record of calls is shorter than Ray's own.
"""

import gc
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from subprocess import DEVNULL

import psutil

logger = logging.getLogger(__name__)

OWN_RAY_ENVIRONMENT = {
    # Ray's own switch for systems that ask about every open port; Linux has it, too. It is read on import, and acts on
    # a node that `ray.init` starts. A driver that joins a cluster gets the address of its node.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # The following reach processes of such a node only, which inherit them.
    "GLOO_SOCKET_IFNAME": "lo",
    "RAY_task_events_max_num_task_in_gcs": "10000",  # calls of actors; for `ray list tasks` alone. Ray keeps 100,000
}
_RAYLET = re.compile(r"\S*/raylet ")
_AGENT = re.compile(r"ray::\w+Agent|\S*python.*/agent(/main)?\.py ")
_GUARD = Path(__file__).with_name("ray_guard.py")

_BY_DEFAULT = gc.get_threshold()
_RARELY = (50_000, 20, 100)  # new objects; looks at those before the next older ones are looked at, too


def prepare_own_ray() -> None:
    """For a driver, before it imports Ray. What the environment says already stays as it is."""
    assert "ray" not in sys.modules, "Ray has read its environment"
    for name, value in OWN_RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def end_ray_with_this_process() -> None:
    """For a driver that has started Ray: what is left of it ends when this process does, even if that is killed."""
    for raylet in _children(psutil.Process(), _RAYLET):
        agents = [str(agent.pid) for agent in _children(raylet, _AGENT)]
        reads, _ = os.pipe()  # the other end is closed when this process ends
        command = [sys.executable, "-I", "-S", str(_GUARD), str(raylet.pid), *agents]
        subprocess.Popen(command, stdin=reads, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
        os.close(reads)


def tell_of_missing_cpus() -> None:
    """For a driver whose Ray is up. Nothing starts on a head that offers none; Ray waits for other nodes in silence."""
    import ray

    if not ray.cluster_resources().get("CPU"):
        logger.warning(
            "no node of this Ray cluster offers a CPU: the run waits until one joins that does; start it with "
            "`ray start --address=... --num-cpus=...`"
        )


def _children(process: psutil.Process, title: re.Pattern[str]) -> list[psutil.Process]:
    return [child for child in process.children() if title.match(_title_of(child))]


def _title_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return ""


def collect_cycles_rarely() -> None:
    """For the imports, and for processes whose objects are small: by default a quarter of an import of vLLM goes into
    looking for cycles. Ray runs this in every process before anything is imported there; the driver calls it itself.
    """
    gc.set_threshold(*_RARELY)


def collect_cycles_as_usual() -> None:
    """For a process with tensors, which a cycle must not keep for long. What is there by now is looked at once, and
    then no more: verl collects garbage several times a step.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_BY_DEFAULT)
