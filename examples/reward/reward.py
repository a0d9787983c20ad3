"""A reward function: is the last number of the answer that of the truth?"""

import re
from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None
) -> dict[str, float]:
    said, true = (re.findall(r"\d+", text)[-1:] for text in (solution_str, ground_truth))
    right = float(bool(said) and said == true)
    return {"score": right, "acc": right}
