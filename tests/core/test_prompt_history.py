"""Prompts chosen by history: the posterior and the draw; that what is skipped comes back: `test_pool.py`."""

from math import comb, exp, lgamma, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.over_sampling import OverSampling
from recipe.async_dapo.core.pool import PromptPool
from recipe.async_dapo.core.prompt_history import PRIOR, PassCount, PromptHistory, SelectBy, Selection
from recipe.async_dapo.core.staleness import StalenessLimit
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory

N = 8


def selection(by: SelectBy = SelectBy.HISTORY, *, exploration: float = 0.2, defer_steps: int = 3) -> Selection:
    return Selection(by=by, forgetting=0.5, exploration=exploration, defer_steps=defer_steps)


def group(number: int, key: str) -> PromptGroup:
    trajectories = [Trajectory(session_id=i) for i in range(N)]
    return PromptGroup(uid=f"uid-{number}", prompt={}, drawn_at_step=1, trajectories=trajectories, key=key)


def history_of(**metrics: list[float]) -> PromptHistory:
    history = PromptHistory(forgetting=0.5)
    for key, answers in metrics.items():
        history.observe(key, answers, [100] * len(answers))
    return history


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
    again.restore(history.state())
    assert again.of("a") == history.of("a") and len(again) == 3 and again.of("d") is None


@pytest.mark.parametrize(("worse", "better"), [(0.0, 1.0), (3, 7), (10, 100), (-2, 0), (-1, 1), (0.5, 0.501)])
def test_given_a_history_then_prompts_that_were_alike_are_skipped_most_and_unknown_ones_never(worse, better) -> None:
    history = history_of(hard=[worse] * N, easy=[better] * N, mixed=[worse, better] * (N // 2))

    def skipped(key: str) -> float:
        return sum(selection().skips(group(i, key), history) for i in range(1000)) / 1000

    assert skipped("unknown") == 0
    assert skipped("mixed") < 0.05
    assert 0.6 < skipped("hard") <= 0.8 and 0.6 < skipped("easy") <= 0.8
    assert not any(selection(SelectBy.UNIFORM).skips(group(i, "hard"), history) for i in range(100))


@given(st.lists(st.sampled_from(["hard", "mixed", "unknown"]), min_size=1, max_size=300), st.integers(1, 20))
def test_given_any_data_then_as_many_are_drawn_as_are_wanted_and_no_more_are_looked_at_than_allowed(keys, wanted):
    history, chosen = history_of(hard=[0.0] * N, mixed=[0.0, 1.0] * (N // 2)), selection()
    count, left, number = wanted, chosen.most_looked_at(wanted), 0
    drawn: list[PromptGroup] = []
    deferred: list[PromptGroup] = []
    while count:
        looked_at = [group(number + i, keys[(number + i) % len(keys)]) for i in range(count)]
        number += len(looked_at)
        new, later = chosen.split(looked_at, history, count=count, left=left, step=7)
        drawn, deferred = drawn + new, deferred + later
        count, left = count - len(new), left - len(looked_at)
    assert len(drawn) == wanted and number <= chosen.most_looked_at(wanted)
    assert sorted(one.uid for one in drawn + deferred) == sorted(f"uid-{i}" for i in range(number))
    assert all(one.deferred_until == 10 for one in deferred) and all(one.key == "hard" or one.key for one in deferred)


def test_given_uniform_selection_then_the_order_is_that_of_the_data_loader() -> None:
    uniform, history = selection(SelectBy.UNIFORM), history_of(hard=[0.0] * N)
    groups = [group(i, "hard") for i in range(20)]
    assert uniform.split(groups, history, count=20, left=uniform.most_looked_at(20), step=1) == (groups, [])
    assert not uniform.records and selection().records


def test_given_lengths_then_the_longest_are_drawn_first_and_prompts_without_a_history_in_the_middle() -> None:
    history = PromptHistory(forgetting=0.5)
    for key, length in {"short": 10, "long": 900, "longer": 1000}.items():
        history.observe(key, [0.0, 1.0], [length, length])
    keys = ["short", "new", "longer", "other", "long"]
    groups = [group(i, key) for i, key in enumerate(keys)]
    uniform = selection(SelectBy.UNIFORM)

    def drawn(known: PromptHistory, *, longest_first: bool) -> list[str]:
        ((some, deferred),) = uniform.draw(lambda _: groups, known, count=5, step=1, longest_first=longest_first)
        assert not deferred
        return [one.key for one in some]

    assert drawn(history, longest_first=True) == ["longer", "long", "new", "other", "short"]
    assert drawn(history, longest_first=False) == keys
    old = PromptHistory(forgetting=0.5)  # of a file that has no lengths
    old.restore({"long": PassCount(right=1.0, wrong=1.0, visits=1)})
    assert drawn(old, longest_first=True) == keys


def test_given_a_deferred_prompt_when_it_is_visited_again_then_it_is_one_prompt_still() -> None:
    pool = PromptPool(
        over_sampling=OverSampling(target_valid_groups=1, batch_size=1),
        keeps_tokens=True,
        stop_rule=StopRuleName.DRAIN,
        staleness=StalenessLimit(max_staleness=None),
        new_uid=lambda: "again",
    )
    first, second, third = (group(i, "hard") for i in range(3))
    first.deferred_until = second.deferred_until = 9
    pool.add_drawn([], [first])
    pool.add_drawn([], [second, group(7, "hard")])
    assert pool.check_ledger() | {"drawn": 1, "deferred": 1} == pool.check_ledger()
    pool.add_drawn([third])
    assert pool.check_ledger() | {"drawn": 1, "deferred": 0, "waiting": 1} == pool.check_ledger()
    assert [one.uid for one in pool.dispatch()] == ["uid-0"]
