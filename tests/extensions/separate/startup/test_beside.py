"""Room on an engine's GPU for weights that arrive."""

from types import SimpleNamespace

import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.extensions.separate.weights import check_room

TEXT = SimpleNamespace(vocab_size=151_936, hidden_size=4096)  # of Qwen3-8B
HF_CONFIG = SimpleNamespace(get_text_config=lambda: TEXT)


def check(utilization: float, **changes: object) -> None:
    rollout = {"dtype": "bfloat16", "enforce_eager": False, "gpu_memory_utilization": utilization} | changes
    check_room(SimpleNamespace(**rollout), HF_CONFIG, bucket_mb=256, memory_bytes=80e9)


def test_given_an_engine_that_leaves_too_little_for_weights_then_it_is_refused_at_its_start() -> None:
    with pytest.raises(
        ConfigError, match=r"gpu_memory_utilization=0\.96: .* 4\.0 GB of a GPU of 80 GB .* at most 0\.94"
    ):
        check(0.96)
    check(0.94)
    check(0.96, enforce_eager=True)  # no graphs
    with pytest.raises(ConfigError):
        check(0.94, dtype="float32")
