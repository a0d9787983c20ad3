"""A worker of vLLM's whose weights a test changes, and whose drafts it counts."""

import torch

from recipe.async_dapo.weights.stream import WeightReceiver


class RescaledReceiver(WeightReceiver):
    @torch.no_grad()
    def rescale(self, factor: float) -> None:
        """As a weight update would, with the weights of all norms times a factor: what CPU builds pack stays."""
        for name, weight in self.model_runner.model.named_parameters():
            if "norm" in name:
                weight.mul_(factor)

    def known_tok(self) -> int:
        """Tokens of answers that it drafts from; 0 where it does not draft."""
        drafter = getattr(getattr(self.model_runner, "drafter", None), "_drafter", None)
        return 0 if drafter is None else int(drafter.size_tok)
