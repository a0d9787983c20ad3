"""Muon (https://kellerjordan.github.io/posts/muon), an optimizer of matrices: with it a tiny transformer learns the
quick start's task in fewer updates than with AdamW.

`torch.optim.Muon`, with this momentum and no weight decay, computes the same for one matrix after the other, and in
bf16: without a GPU that takes as long as the rest of an update. Here matrices of one shape are a batch, in their own
precision.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch

_MOMENTUM = 0.9
# Of the polynomial a x + b x^3 + c x^5: singular values from (0, 1] soon lie between 0.7 and 1.2, and stay there.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_APPLICATIONS = 5
_TINY = 1e-7  # keeps a gradient of zeros at zero


class Muon(torch.optim.Optimizer):
    """Each update is the gradient's momentum with all of its singular values brought near to 1.

    Args:
        matrices: of hidden layers; embeddings, output layer and norms are for another optimizer.
        lr: times the root of rows over columns where a matrix has more rows.
    """

    def __init__(self, matrices: Iterable[torch.nn.Parameter], lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            batches: dict[torch.Size, list[torch.Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                batches[matrix.shape].append(matrix)
            for (rows, columns), matrices in batches.items():
                update_NRC = orthogonal(torch.stack([self._momentum(matrix) for matrix in matrices]))
                step_size = group["lr"] * max(1.0, rows / columns) ** 0.5
                torch._foreach_sub_(matrices, list(update_NRC), alpha=step_size)

    def _momentum(self, matrix: torch.Tensor) -> torch.Tensor:
        """Nesterov's."""
        state = self.state[matrix]
        mean = state.setdefault("mean", torch.zeros_like(matrix))
        mean.lerp_(matrix.grad, 1 - _MOMENTUM)
        return matrix.grad.lerp(mean, _MOMENTUM)


def orthogonal(matrices_NRC: torch.Tensor) -> torch.Tensor:
    """The matrices [N, R, C] with singular values between about 0.7 and 1.2, unless they are much below the largest."""
    is_high = matrices_NRC.shape[1] > matrices_NRC.shape[2]
    x = matrices_NRC.mT if is_high else matrices_NRC
    x = x / (x.norm(dim=(1, 2), keepdim=True) + _TINY)
    for _ in range(_APPLICATIONS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=_B, alpha=_C), x, beta=_A)
    return x.mT if is_high else x
