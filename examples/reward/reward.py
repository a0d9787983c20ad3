"""A reward function: is the last number of the answer the right one?"""

import re
from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None
) -> dict[str, float]:
    numbers = re.findall(r"\d+", solution_str)
    right = float(bool(numbers) and numbers[-1] == ground_truth)
    return {"score": right, "acc": right}
