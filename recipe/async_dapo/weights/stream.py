"""A stream of weights from a trainer to its engine, which can tell that they are its own run's and which version's.

    trainer: tensors, then a proof --socket in this Ray cluster's folder--> engine: compares the proof with its own

Both ends compute a checksum over the stream: some milliseconds beside a transfer, and nothing is sent but the proof.

verl meets in the system's temporary folder, under a name that every first job of a Ray cluster has: two clusters on one
machine would take each other's weights. Ray's folder is the cluster's own on each node, it is gone when the cluster's
files are, and the job's id, which stays in the name, tells the jobs of one cluster apart.
"""

import hashlib
import logging
import os
import re
import traceback
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import ray
import torch
from verl.workers.rollout.utils import ensure_async_iterator
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from ..config.extensions import load

logger = logging.getLogger(__name__)

NamedTensor = tuple[str, torch.Tensor]
WeightFilter = Callable[[Any], Any]  # of a stream of weights, as verl gives them

PROOF = "async_dapo.weight_proof"  # travels as a tensor of this name

_SAMPLED_EVERY = 16
_SAMPLED_VALUES = 64

CUSTOM_OPTIONS = "async_dapo"  # in verl's `rollout.custom`: what servers and training workers need of the options
FOLDER_VARIABLE = "ASYNC_DAPO_SOCKETS"  # tells the folder to engine processes, which know nothing of Ray

_VLLMS_FOLDER_VARIABLE = "VLLM_RPC_BASE_PATH"
_VLLMS_NAME_BYTES = 37  # a slash and a UUID
_LONGEST_PATH = 107  # of a Unix socket, in bytes
_VERLS_HANDLE = re.compile(r"ipc:///tmp/rl-colocate-zmq-(\w+)-replica-(\d+)-rank-(\d+)\.sock")


def unchanged(weights: Any) -> Any:
    """The `WeightFilter` that changes nothing."""
    return weights


class WeightsMismatch(RuntimeError):
    """An engine was given other weights than those of its run and policy version."""


class WeightsNotLoaded(RuntimeError):
    """An engine has failed to load weights that it was sent."""


class Checksum:
    """Of a stream of weights: of all names, shapes and types, and of the first values of every sixteenth tensor."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=8)
        self._tensors = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        self._digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        if self._tensors % _SAMPLED_EVERY == 0 and tensor.numel():
            first_row = tensor.detach()[(0,) * (tensor.dim() - 1)]  # not even a strided tensor is copied whole
            self._digest.update(_bytes_of(first_row.reshape(-1)[:_SAMPLED_VALUES]))
        self._tensors += 1

    def proof(self, run: str, version: int | None) -> str:
        """What a transfer says of itself at its end."""
        return f"policy version {version} of run {run}, checksum {self._digest.hexdigest()}"


async def with_proof(
    weights: Iterable[NamedTensor] | AsyncIterable[NamedTensor], *, run: str, version: int | None
) -> AsyncIterator[NamedTensor]:
    checksum = Checksum()
    async for name, tensor in ensure_async_iterator(weights):
        checksum.add(name, tensor)
        yield name, tensor
    yield PROOF, torch.frombuffer(bytearray(checksum.proof(run, version).encode()), dtype=torch.uint8)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()


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


class WeightReceiver(vLLMColocateWorkerExtension):
    """The engine's end, part of every vLLM worker, in processes without Ray: meets the trainer at its run's own socket,
    and refuses weights that are not of this run and version.

    It refuses after the transfer, as it tells then what it could not load: the trainer's end would wait for ever for
    the answer to a piece that is not taken, and verl's clean-up, which fails while an error's frames hold the shared
    memory, would hide the error.
    """

    def update_weights_from_ipc(
        self, *, expected_run: str | None = None, expected_version: int | None = None, **kwargs: Any
    ) -> None:
        """
        Raises:
            WeightsMismatch: what came is not what the caller, which is of this run, has sent.
            WeightsNotLoaded: naming what failed.
        """
        self._checksum, self._proof = Checksum(), "weights without a proof"
        self._failure = ""  # the first of this transfer, as text: vLLM passes on nothing else
        engine = f"replica {os.environ['VERL_REPLICA_RANK']}, rank {self.local_rank}"
        try:
            super().update_weights_from_ipc(**kwargs)
        except Exception as error:
            self._note(error)
        if self._failure:
            raise WeightsNotLoaded(f"{engine}: could not load weights of version {expected_version}: {self._failure}")
        if self._proof != (expected := self._checksum.proof(str(expected_run), expected_version)):
            raise WeightsMismatch(f"{engine}: expected weights of {expected}; found {self._proof}")

    def call_extension(self, name: str, place: str, *args: Any) -> Any:
        """Call an extension's function, named "module.function", with each worker of the engine."""
        return load(name, place)(self, *args)

    def _update_weights(self, weights: list[NamedTensor], **kwargs: Any) -> None:
        arrived = []
        for name, tensor in weights:
            if name == PROOF:
                self._proof = _bytes_of(tensor).decode()
            else:
                self._checksum.add(name, tensor)
                arrived.append((name, tensor))
        try:
            if not self._failure:
                super()._update_weights(arrived, **kwargs)
        except Exception as error:
            self._note(error)

    def _use_mtp_drafter_weight_sync(self) -> bool:
        """A head with a load format of its own is the checkpoint's. verl would load the trainer's weights into it, and
        some heads refuse what holds none of theirs; and would pack it again for the kernels though it is packed.
        """
        spec = self.model_runner.vllm_config.speculative_config
        return super()._use_mtp_drafter_weight_sync() and spec.draft_load_config is None

    def _note(self, error: Exception) -> None:
        logger.error("weights could not be loaded\n%s", "".join(traceback.format_exception(error)))
        self._failure = self._failure or " ".join(f"{type(error).__name__}: {error}".split())

    def _get_zmq_handle(self) -> str:
        return private_handle(super()._get_zmq_handle(), Path(os.environ[FOLDER_VARIABLE]))
