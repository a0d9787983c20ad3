"""A Ray cluster that a run starts for itself: who can reach it, and how much it remembers.

It is on one node, and listens on this machine's loopback address only: whoever reaches a port of Ray, of torch's stores
or of vLLM can run code in the job.
"""

import os
import sys

OWN_RAY_ENVIRONMENT = {
    # Ray's own switch for systems that ask about every open port; Linux has it, too. It is read on import, and acts on
    # a node that `ray.init` starts. A driver that joins a cluster gets the address of its node.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # The following reach processes of such a node only, which inherit them.
    "GLOO_SOCKET_IFNAME": "lo",
    "RAY_task_events_max_num_task_in_gcs": "10000",  # calls of actors; for `ray list tasks` alone. Ray keeps 100,000
}


def prepare_own_ray() -> None:
    """For a driver, before it imports Ray. What the environment says already stays as it is."""
    assert "ray" not in sys.modules, "Ray has read its environment"
    for name, value in OWN_RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
