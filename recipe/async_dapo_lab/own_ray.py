"""A Ray cluster that a run starts for itself.

The cluster is on one node, and ends with the run. It listens on this machine's loopback address only: what reaches a
port of Ray, of torch's stores or of vLLM can run code in the job. Its record of calls is shorter than Ray's own.
"""

import os
import subprocess
import sys
import uuid
from pathlib import Path
from subprocess import DEVNULL

from .ray_guard import DRIVER_VARIABLE

# How long a node may take to start, and its agents to answer: 20 s where three start at a time on two cores, and Ray's
# own limits are 30 s. One that takes longer than this does not come up at all, and a run starts another one.
PATIENCE = {"RAY_raylet_start_wait_time_s": "100", "RAY_agent_register_timeout_ms": "100000"}
OWN_RAY_ENVIRONMENT = PATIENCE | {
    # Ray's own switch for systems that ask about every open port; Linux has it, too. It is read on import, and acts on
    # a node that `ray.init` starts. A driver that joins a cluster gets the address of its node.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # The following reach processes of such a node only, which inherit them.
    "GLOO_SOCKET_IFNAME": "lo",
    "RAY_task_events_max_num_task_in_gcs": "10000",  # calls of actors; for `ray list tasks` alone. Ray keeps 100,000
}
_GUARD = Path(__file__).with_name("ray_guard.py")


def prepare_own_ray() -> None:
    """For a driver, before it imports Ray. What the environment says already stays as it is."""
    assert "ray" not in sys.modules, "Ray has read its environment"
    for name, value in OWN_RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def end_ray_with_this_process() -> None:
    """For a driver, before it starts Ray: what is left of it ends when this process does, even if that is killed."""
    os.environ[DRIVER_VARIABLE] = mark = uuid.uuid4().hex
    os.environ["SPT_NOENV"] = "1"  # Ray sets titles without writing them over the environment, where the mark stands
    reads, _ = os.pipe()  # the other end is closed when this process ends
    command = [sys.executable, "-I", "-S", str(_GUARD), mark]
    subprocess.Popen(command, stdin=reads, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
    os.close(reads)
