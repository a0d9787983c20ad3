"""Where mixtures take the place of what the engines recorded, in the passes of a step."""

from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transfer_queue import KVBatchMeta

from ...training.passes import Passes
from .correction import Mixture


class MixturePasses(Passes):
    """The passes of a run that weighs older tokens against the mixture of their group's versions."""

    def begin(self) -> None:
        super().begin()
        self._mixture = Mixture(self._workers, self._config, self._options)

    def sampled_by(self, batch: KVBatchMeta, recorded_BT: Tensor, step: int, metrics: dict[str, Any]) -> Tensor:
        log_probs = self._mixture.log_probs(batch, step=step, metrics=metrics)
        self._lens_tok = [*map(len, log_probs)]
        return pad_sequence(log_probs, batch_first=True)

    def weigh(self, batch: KVBatchMeta, log_ratio_BT: Tensor, mask_BT: Tensor, metrics: dict[str, Any]) -> None:
        self._mixture.weigh(batch, log_ratio_BT.float(), mask_BT, self._lens_tok, metrics)
