"""Answers of a prompt's last visit: which are kept, and for how long."""

from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.prompt_history import MOST_ANSWERS, EarlierAnswers, chosen


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 40)), max_size=40))
def test_given_any_visits_when_there_is_a_limit_then_the_newest_prompts_are_kept_up_to_it(visits):
    earlier, newest = EarlierAnswers(limit_bytes=100), {}
    for number, (key, size) in enumerate(visits):
        earlier.keep(key, number, size)
        newest.pop(key, None)
        newest[key] = number, size
        assert earlier.size_bytes <= 100
    kept = dict(earlier.items())
    assert list(kept.items()) == [(key, number) for key, (number, _) in newest.items()][len(newest) - len(kept) :]
    assert all(earlier.of(key) == kept.get(key) for key in "abcdef")


def test_of_a_visit_the_longest_answers_are_kept():
    assert chosen([b"1", b"333", b"22", b"4444"]) == [b"4444", b"333"] and MOST_ANSWERS == 2
