"""What answers are made of, and how the scripted reward reads them."""

from typing import Any

from .answers import BASE, Vocabulary
from .options import RehearsalOptions, RewardSource

RIGHT, WRONG, FILLER = "1", "0", "."


def vocabulary_of(tokenizer: Any, options: RehearsalOptions) -> Vocabulary:
    """The tokens of a tokenizer that answers are written with."""

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    is_scripted = options.reward is RewardSource.SCRIPTED
    return Vocabulary(
        digits=tuple(ids(str(digit))[-1] for digit in range(BASE)),
        filler=ids(FILLER)[-1],
        right=ids(RIGHT) if is_scripted else ids(options.stand_in_text),
        wrong=ids(WRONG) if is_scripted else ids(options.stand_in_text),
        end_of_text=tokenizer.eos_token_id,
    )


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, *, metric: str = "acc", **_: Any
) -> dict[str, float]:
    """1 for an answer that ends as a right one does. The signature is that of verl's custom reward function.

    Args:
        metric: a further name for the score: the one that groups are filtered by.
    """
    score = float(solution_str.rstrip().endswith(RIGHT))
    return {"score": score, "acc": score, metric: score}
