"""A reward that any model gets, also one with random weights: half of the answers are right, by a hash of each."""

import zlib
from typing import Any


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    **_kwargs: Any,
) -> dict[str, float]:
    """The signature is that of verl's custom reward function."""
    accuracy = float(zlib.crc32(solution_str.encode()) % 2)
    return {"score": accuracy, "acc": accuracy}
