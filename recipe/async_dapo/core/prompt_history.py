"""What is known of a prompt from its earlier visits, and whether to draw it next.

Every prompt has a Beta posterior of its pass rate, whose evidence is discounted at each visit (MoPPS,
arXiv:2507.04632). From it follows the probability that all n answers would be alike; a prompt is skipped with that
probability, less an exploration floor (as GRESO, arXiv:2506.02177, skips by streaks of such groups). A prompt that was
never visited is not skipped. What is skipped is deferred: at each visit of the data loader it may be drawn after all,
and after a stated number of steps it is, whatever its history says.

Where groups that were interrupted start again, the longest answers start first: fewer are interrupted. That is an order
of what is drawn together, and changes nothing of what is drawn.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from math import ceil

from .outcome import is_certain
from .trajectory import PromptGroup

PRIOR = 0.25  # pseudo-answers of either kind: pass rates of most prompts lie near 0 or 1


class SelectBy(StrEnum):
    UNIFORM = "uniform"
    HISTORY = "history"


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

    def state(self) -> dict[str, PassCount]:
        return dict(self._counts)

    def restore(self, counts: dict[str, PassCount]) -> None:
        self._counts = dict(counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """How prompts are chosen.

    Args:
        by: uniform = the data loader's order, history = without what the history expects to teach nothing.
        forgetting: see `PromptHistory` [0-1].
        exploration: least probability with which a prompt is drawn, whatever its history [0-1, > 0].
        defer_steps: after so many steps a skipped prompt is drawn [steps, >= 1].
    """

    by: SelectBy
    exploration: float = 0.1
    forgetting: float = 0.5
    defer_steps: int = 100  # more than an epoch of common data sets, or nothing would be saved

    @property
    def records(self) -> bool:
        """Whether a history is kept."""
        return self.by is SelectBy.HISTORY

    def most_looked_at(self, count: int) -> int:
        """Prompts that are looked at, at most, to draw `count`; the last of them are drawn whatever they are."""
        return count if self.by is SelectBy.UNIFORM else ceil(count / self.exploration)

    def skips(self, group: PromptGroup, history: PromptHistory) -> bool:
        """Whether a fresh group is to be deferred: a draw by the hash of its uid, the same whenever it is asked."""
        known = history.of(group.key)
        if self.by is SelectBy.UNIFORM or known is None:
            return False
        drawn = int.from_bytes(blake2b(group.uid.encode(), digest_size=8, person=b"selection").digest())
        return drawn < (1 - self.exploration) * known.alike_share(len(group.trajectories)) * 2**64

    def draw(
        self,
        fetch: Callable[[int], Sequence[PromptGroup]],
        history: PromptHistory,
        *,
        count: int,
        step: int,
        longest_first: bool = False,
    ) -> Iterator[tuple[list[PromptGroup], list[PromptGroup]]]:
        """Draw `count` prompts, and defer what is skipped on the way.

        Args:
            fetch: returns so many of the data loader's next prompts.
            longest_first: order of those that are drawn.

        Yields:
            Drawn and deferred ones of each fetch.
        """
        left = self.most_looked_at(count)
        while count:
            groups = fetch(count)
            drawn, deferred = self.split(groups, history, count=count, left=left, step=step)
            yield history.longest_first(drawn) if longest_first else drawn, deferred
            count, left = count - len(drawn), left - len(groups)

    def split(
        self, groups: Iterable[PromptGroup], history: PromptHistory, *, count: int, left: int, step: int
    ) -> tuple[list[PromptGroup], list[PromptGroup]]:
        """Divide fresh groups into those to draw and those to defer.

        Args:
            count: groups that are wanted.
            left: prompts that may still be looked at, these included.
            step: now.

        Returns:
            Drawn and deferred ones.
        """
        drawn: list[PromptGroup] = []
        deferred: list[PromptGroup] = []
        for group in groups:
            if count - len(drawn) < left and self.skips(group, history):
                group.deferred_until = step + self.defer_steps
                deferred.append(group)
            else:
                drawn.append(group)
            left -= 1
        return drawn, deferred
