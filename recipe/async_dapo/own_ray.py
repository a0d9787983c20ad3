"""A Ray cluster that a run starts for itself: who can reach it, how much it remembers, and that it ends.

It is on one node, and listens on this machine's loopback address only: whoever reaches a port of Ray, of torch's stores
or of vLLM can run code in the job.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import psutil

OWN_RAY_ENVIRONMENT = {
    # Ray's own switch for systems that ask about every open port; Linux has it, too. It is read on import, and acts on
    # a node that `ray.init` starts. A driver that joins a cluster gets the address of its node.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # The following reach processes of such a node only, which inherit them.
    "GLOO_SOCKET_IFNAME": "lo",
    "RAY_task_events_max_num_task_in_gcs": "10000",  # calls of actors; for `ray list tasks` alone. Ray keeps 100,000
}
# A process id may belong to somebody else by then.
_KILL_AGENTS = 'read over; for pid; do grep -aqi agent "/proc/$pid/cmdline" && kill -9 "$pid"; done 2>/dev/null'
_AGENT = re.compile(r"ray::\w+Agent|\S*python.*/agent(/main)?\.py ")


def prepare_own_ray() -> None:
    """For a driver, before it imports Ray. What the environment says already stays as it is."""
    assert "ray" not in sys.modules, "Ray has read its environment"
    for name, value in OWN_RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def end_agents_with_this_process() -> None:
    """For a driver that has started Ray: Ray's two agents of the node end when it does, even if it is killed.

    They would try for a minute to tell the GCS, which has gone with its driver, that the raylet has gone.
    """
    if agents := [str(agent.pid) for agent in _agents()]:
        reads, _ = os.pipe()  # the other end is closed when this process ends
        subprocess.Popen(["sh", "-c", _KILL_AGENTS, "sh", *agents], stdin=reads, start_new_session=True)
        os.close(reads)


def _agents() -> Iterator[psutil.Process]:
    """Children of the raylet, which is a child of the driver that has started it."""
    for child in psutil.Process().children():
        yield from (process for process in child.children() if _AGENT.match(" ".join(process.cmdline())))
