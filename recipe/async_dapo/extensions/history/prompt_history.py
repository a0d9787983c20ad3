"""What is known of a prompt from its earlier visits.

Every prompt has a Beta posterior of its pass rate, whose evidence is discounted at each visit (MoPPS,
arXiv:2507.04632). From it follows the probability that all n answers would be alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...core.outcome import is_certain
from ...core.trajectory import PromptGroup

PRIOR = 0.25  # pseudo-answers of either kind: pass rates of most prompts lie near 0 or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCount:
    """Answers to a prompt, discounted by age [answers]."""

    right: float
    wrong: float
    visits: int
    len_tok: float = 0.0  # mean of these answers' lengths; 0 = not recorded

    def __post_init__(self) -> None:
        if min(self.right, self.wrong, self.visits) < 0:
            raise ValueError(f"a prompt was answered right {self.right}, wrong {self.wrong} times")

    def alike_share(self, n: int) -> float:
        """Posterior probability that n answers are all right or all wrong [0-1]: E[p^n + (1 - p)^n] under
        Beta(right + prior, wrong + prior)."""
        a, b = self.right + PRIOR, self.wrong + PRIOR
        all_right = all_wrong = 1.0
        for i in range(n):
            all_right *= (a + i) / (a + b + i)
            all_wrong *= (b + i) / (a + b + i)
        return all_right + all_wrong


class PromptHistory:
    """Pass counts by prompt.

    Args:
        forgetting: what an earlier answer counts at the next visit [0-1]; 1 = nothing is forgotten.
    """

    def __init__(self, forgetting: float) -> None:
        self._forgetting = forgetting
        self._counts: dict[str, PassCount] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def of(self, key: str) -> PassCount | None:
        """None before the first visit."""
        return self._counts.get(key)

    def observe(self, key: str, metrics: Sequence[float], lens_tok: Sequence[int]) -> None:
        """Take in a group that was judged.

        Args:
            metrics: of its answers, on any scale: where they differ, the best is right, the worst wrong, and what is
                between them partly either; where they do not, all are right above 0, and else wrong.
            lens_tok: of its answers.
        """
        if is_certain(metrics):
            worst, best = min(metrics), max(metrics)
            right = sum((metric - worst) / (best - worst) for metric in metrics)
        else:
            right = float(len(metrics) * (metrics[0] > 0))
        before = self._counts.get(key, PassCount(right=0.0, wrong=0.0, visits=0))
        earlier = self._forgetting * (before.right + before.wrong) if before.len_tok else 0.0
        self._counts[key] = PassCount(
            right=self._forgetting * before.right + right,
            wrong=self._forgetting * before.wrong + len(metrics) - right,
            visits=before.visits + 1,
            len_tok=(earlier * before.len_tok + sum(lens_tok)) / (earlier + len(lens_tok)),
        )

    def longest_first(self, groups: Sequence[PromptGroup]) -> list[PromptGroup]:
        """In order of the lengths that are expected; prompts without a history are taken for average ones."""
        lens_tok = [0.0 if (known := self.of(group.key)) is None else known.len_tok for group in groups]
        seen = [length for length in lens_tok if length]
        mean_tok = sum(seen) / len(seen) if seen else 0.0
        expected = {group.uid: length or mean_tok for group, length in zip(groups, lens_tok, strict=True)}
        return sorted(groups, key=lambda group: -expected[group.uid])

    @property
    def counts(self) -> Mapping[str, PassCount]:
        """By the prompts' names."""
        return self._counts

    def restore(self, counts: Mapping[str, PassCount]) -> None:
        self._counts = dict(counts)
