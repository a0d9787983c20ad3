"""The engine's end of a weight transfer with ballast: tensors of a larger model's sizes, received and thrown away."""

from typing import Any

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from ...async_dapo.weights.stream import NamedTensor, StampReader, WeightReceiver

BALLAST = "async_dapo.ballast."  # begins the names of tensors that no model has; they come first in a stream


class BallastReceiver(WeightReceiver):
    """The recipe's receiver; what it throws away is stamped and checked like everything else."""

    def receive_as_verl(self, **kwargs: Any) -> None:
        """As verl's own adapter does: whatever comes is loaded, whoever sent it."""
        self._stamp_reader = StampReader()
        vLLMColocateWorkerExtension.update_weights_from_ipc(self, **kwargs)

    def _update_weights(self, weights: list[NamedTensor], **kwargs: Any) -> None:
        ballast = [(name, tensor) for name, tensor in weights if name.startswith(BALLAST)]
        self._stamp_reader.without_stamp(ballast)
        super()._update_weights(weights[len(ballast) :], **kwargs)
