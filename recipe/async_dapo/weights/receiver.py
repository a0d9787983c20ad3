"""The engine's end of a weight transfer: part of every vLLM worker, in processes that know nothing of Ray."""

import os
from pathlib import Path
from typing import Any

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from ..core.weight_stamp import WeightStamp, check_stamp
from .sockets import FOLDER_VARIABLE, private_handle
from .stream import NamedTensor, StampReader


class WeightReceiver(vLLMColocateWorkerExtension):
    """Meets the trainer at its run's own socket, and refuses weights that are not of this run and version.

    It refuses after the transfer: the trainer's end would wait for ever for the answer to a piece that is not taken.
    """

    def update_weights_from_ipc(
        self, *, expected_run: str | None = None, expected_version: int | None = None, **kwargs: Any
    ) -> None:
        """
        Raises:
            WeightsMismatch: what came is not what the caller, who is of this run, has sent.
        """
        self._stamp_reader = StampReader()
        super().update_weights_from_ipc(**kwargs)
        reader = self._stamp_reader
        expected = WeightStamp(run=str(expected_run), version=expected_version, checksum=reader.checksum())
        replica = os.environ["VERL_REPLICA_RANK"]
        check_stamp(f"replica {replica}, rank {self.local_rank}", expected=expected, found=reader.stamp)

    def _update_weights(self, weights: list[NamedTensor], **kwargs: Any) -> None:
        super()._update_weights(self._stamp_reader.without_stamp(weights), **kwargs)

    def _get_zmq_handle(self) -> str:
        return private_handle(super()._get_zmq_handle(), Path(os.environ[FOLDER_VARIABLE]))
