"""A worker of vLLM's whose weights a test changes."""

import torch

from recipe.async_dapo.weights.stream import WeightReceiver


class RescaledReceiver(WeightReceiver):
    @torch.no_grad()
    def rescale(self, factor: float) -> None:
        """As a weight update would, with the weights of all norms times a factor: what CPU builds pack stays."""
        for name, weight in self.model_runner.model.named_parameters():
            if "norm" in name:
                weight.mul_(factor)
