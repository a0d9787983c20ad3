"""A Ray cluster that a run starts for itself listens on this machine's loopback address only.

Whoever reaches a port of Ray, of torch's stores or of vLLM can run code in the job.
"""

import os
import sys

LOOPBACK_ENVIRONMENT = {
    # Ray's own switch for systems that ask about every open port; Linux has it, too. It is read on import, and acts on
    # a node that `ray.init` starts. A driver that joins a cluster gets the address of its node.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "GLOO_SOCKET_IFNAME": "lo",  # inherited by the processes of such a node only
}


def listen_on_loopback() -> None:
    """For a driver, before it imports Ray. What the environment says already stays as it is."""
    assert "ray" not in sys.modules, "Ray has chosen its addresses"
    for name, value in LOOPBACK_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
