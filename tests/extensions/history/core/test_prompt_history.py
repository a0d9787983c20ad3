"""What is known of a prompt: the posterior of its pass rate, and the length of its answers."""

from math import comb, exp, lgamma, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.extensions.history.prompt_history import PRIOR, PassCount, PromptHistory

N = 8


def group(number: int, key: str) -> PromptGroup:
    trajectories = [Trajectory(session_id=i) for i in range(N)]
    return PromptGroup(uid=f"uid-{number}", prompt={}, drawn_at_step=1, trajectories=trajectories, key=key)


@given(right=st.floats(0, 50), wrong=st.floats(0, 50), n=st.integers(2, 16))
def test_the_share_of_groups_that_are_alike_is_what_a_beta_binomial_says(right, wrong, n) -> None:
    a, b = right + PRIOR, wrong + PRIOR
    share = PassCount(right=right, wrong=wrong, visits=1).alike_share(n)

    def beta_binomial(m: int) -> float:
        beta = lgamma(a + m) + lgamma(b + n - m) - lgamma(a + b + n) - lgamma(a) - lgamma(b) + lgamma(a + b)
        return beta + log(comb(n, m))

    assert share == pytest.approx(exp(beta_binomial(0)) + exp(beta_binomial(n)), rel=1e-6)


def test_given_visits_then_earlier_answers_count_less_and_less() -> None:
    history = PromptHistory(forgetting=0.5)
    for metrics in ([0.0] * 8, [1.0] * 4 + [0.0] * 4):
        history.observe("a", metrics, [100 + 200 * round(metrics[0])] * 8)
    assert history.of("a") == PassCount(right=4.0, wrong=8.0, visits=2, len_tok=pytest.approx(700 / 3))
    history.observe("b", [-1.0, 1.0, 7.0], [10, 20, 30])
    assert history.of("b") == PassCount(right=1.25, wrong=1.75, visits=1, len_tok=20.0)
    history.observe("c", [0.5] * 8, [10] * 8)  # alike, above 0 and below 1
    assert history.of("c") == PassCount(right=8.0, wrong=0.0, visits=1, len_tok=10.0)
    again = PromptHistory(forgetting=0.5)
    again.restore(history.counts)
    assert again.of("a") == history.of("a") and len(again) == 3 and again.of("d") is None


def test_given_lengths_then_the_longest_are_drawn_first_and_prompts_without_a_history_in_the_middle() -> None:
    history = PromptHistory(forgetting=0.5)
    for key, length in {"short": 10, "long": 900, "longer": 1000}.items():
        history.observe(key, [0.0, 1.0], [length, length])
    keys = ["short", "new", "longer", "other", "long"]
    groups = [group(i, key) for i, key in enumerate(keys)]
    assert [one.key for one in history.longest_first(groups)] == ["longer", "long", "new", "other", "short"]
    old = PromptHistory(forgetting=0.5)  # of a file that has no lengths
    old.restore({"long": PassCount(right=1.0, wrong=1.0, visits=1)})
    assert [one.key for one in old.longest_first(groups)] == keys
