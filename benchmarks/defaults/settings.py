"""The grid: 1 to 512 servers, B 32 to 1,024, n 8 and 16, 4K to 40K tokens, H100 and H200, long and short tails."""

from dataclasses import dataclass
from typing import Any

from recipe.async_dapo_lab.plan.inputs import Inputs
from recipe.async_dapo_lab.plan.scenario import Scenario

# What a grid differs in from the planner's own defaults, by the name of its folder.
GRIDS: dict[str, dict[str, Any]] = {
    "": {},
    "four_updates": {"updates": 4},
    "one_update": {"updates": 1},
    "published_2025": {"engine": "published-2025"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Inputs of the planner, for Qwen3-8B on one GPU a server unless said otherwise."""

    servers: int
    accelerator: str
    groups: int  # B
    n: int
    limit_tok: int
    median_tok: int
    sigma: float = 0.9
    model: str = "qwen3-8b"
    gpus: int = 1  # per server
    grid: str = ""  # of `GRIDS`

    def __str__(self) -> str:
        gpus = "" if self.gpus == 1 else f"{self.gpus} "
        model = "" if self.model == "qwen3-8b" else f", {self.model}"
        return (
            f"{self.servers} x {gpus}{self.accelerator.upper()}, B={self.groups}, n={self.n}, "
            f"{self.limit_tok // 1024}K, median {self.median_tok / 1000:g}K, sigma {self.sigma:g}{model}"
        )

    def scenario(self, **more: Any) -> Scenario:
        """
        Args:
            more: of the planner's inputs.
        """
        values: dict[str, Any] = {
            "model": self.model,
            "servers": self.servers,
            "tensor_parallel_size": self.gpus,
            "accelerator": self.accelerator,
            "train_batch_size": self.groups,
            "rollout_n": self.n,
            "max_response_length": self.limit_tok,
            "length_median_tok": float(self.median_tok),
            "length_sigma": self.sigma,
        }
        return Inputs.load(values | GRIDS[self.grid] | more).scenario()


def _of(servers: int, accelerator: str, groups: int, n: int, limit_k: int, median_tok: int, sigma: float, **rest: Any):
    return Setting(
        servers=servers,
        accelerator=accelerator,
        groups=groups,
        n=n,
        limit_tok=1024 * limit_k,
        median_tok=median_tok,
        sigma=sigma,
        **rest,
    )


SETTINGS = [
    _of(1, "h100", 32, 8, 4, 1200, 0.9),
    _of(2, "h200", 32, 16, 40, 5000, 1.2),
    _of(8, "h200", 64, 8, 16, 4000, 0.9),
    _of(8, "h100", 128, 8, 8, 2000, 0.9),
    _of(8, "h200", 512, 16, 16, 4000, 0.9),
    _of(16, "h100", 64, 16, 4, 1500, 0.5),
    _of(16, "h200", 256, 8, 20, 6000, 0.7, model="qwen3-32b", gpus=4),
    _of(32, "h200", 128, 16, 32, 9000, 0.9),
    _of(32, "h200", 512, 16, 16, 4000, 0.9),
    _of(64, "h100", 256, 8, 8, 4000, 0.9),
    _of(64, "h200", 1024, 16, 20, 6000, 0.9),
    _of(128, "h100", 512, 16, 20, 6000, 0.5),
    _of(256, "h200", 512, 16, 40, 8000, 1.1),
    _of(512, "h100", 1024, 16, 16, 4000, 0.9),
    _of(512, "h200", 256, 8, 40, 8000, 0.9),
]
