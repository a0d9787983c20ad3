"""Where trainer and engine meet for a weight transfer: in the folder that holds the sockets of this Ray cluster.

verl meets in the system's temporary folder, under a name that every first job of a Ray cluster has: two clusters on one
machine would take each other's weights. Ray's folder is the cluster's own on each node, it is gone when the cluster's
files are, and the job's id, which stays in the name, tells the jobs of one cluster apart.
"""

import os
import re
from pathlib import Path

import ray

FOLDER_VARIABLE = "ASYNC_DAPO_SOCKETS"  # tells the folder to engine processes, which know nothing of Ray

_VLLMS_FOLDER_VARIABLE = "VLLM_RPC_BASE_PATH"
_VLLMS_NAME_BYTES = 37  # a slash and a UUID
_LONGEST_PATH = 107  # of a Unix socket, in bytes
_VERLS_HANDLE = re.compile(r"ipc:///tmp/rl-colocate-zmq-(\w+)-replica-(\d+)-rank-(\d+)\.sock")


def sockets_folder() -> Path:
    """That of this process's Ray cluster on this node."""
    node_id = ray.get_runtime_context().get_node_id()
    [node] = [node for node in ray.nodes() if node["NodeID"] == node_id]
    return Path(node["ObjectStoreSocketName"]).parent


def use_for_engine(folder: Path) -> None:
    """For a process that is about to start an engine: vLLM puts its sockets there, if their paths are short enough.

    In the temporary folder those of an engine that is killed would stay.
    """
    if len(str(folder).encode()) + _VLLMS_NAME_BYTES <= _LONGEST_PATH:
        os.environ.setdefault(_VLLMS_FOLDER_VARIABLE, str(folder))


def run_name(folder: Path) -> str:
    """Names a run in messages, and unlike any other on a machine: Ray's session and job."""
    return f"{folder.parent.name}/{ray.get_runtime_context().get_job_id()}"


def private_handle(verls_handle: str, folder: Path) -> str:
    """The ZMQ address in `folder` for what verl would meet at in the temporary folder.

    Raises:
        ValueError: the path is longer than a socket's may be.
    """
    match = _VERLS_HANDLE.fullmatch(verls_handle)
    assert match, f"{verls_handle}: not the address that verl 0.9.1 makes"
    job_id, replica, rank = match.groups()
    path = folder / f"w{job_id}-{replica}-{rank}"
    if len(str(path).encode()) > _LONGEST_PATH:
        raise ValueError(
            f"{path}: a socket's path ends at {_LONGEST_PATH} bytes; give Ray a shorter folder "
            "(ray start --temp-dir, or +ray_kwargs.ray_init._temp_dir)"
        )
    return f"ipc://{path}"
