"""When hardly a group is valid any more: whether the policy has collapsed, and since when."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.extensions.policy_health.policy_health import Figure, PolicyHealth

FIGURES = (Figure(key="entropy", name="entropy", grows=3.0, shrinks=10.0), Figure(key="norm", name="norm", grows=100.0))


def health(*steps: dict[str, float]) -> PolicyHealth:
    made = PolicyHealth(FIGURES, rejected_share="rejected", skipped="skipped")
    for step, values in enumerate(steps, 1):
        made.observe(step, values)
    return made


GOOD = {"rejected": 0.6, "entropy": 1.0, "norm": 0.5, "skipped": 0.0}


def test_given_one_step_before_the_collapse_then_the_share_of_valid_groups_alone_says_it():
    assert health(GOOD).collapse(1 / 182) == "the policy has collapsed since step 1: valid groups 0.4 -> 0.00549"


@pytest.mark.parametrize(("now", "sign"), [(math.nan, "norm 0.5 -> nan"), (80.0, "norm 0.5 -> 80")])
def test_given_figures_that_have_changed_then_they_are_named_since_the_step_of_the_first(now, sign):
    bad = GOOD | {"entropy": 0.01}
    said = health(GOOD, GOOD, bad, bad | {"norm": now, "skipped": 1.0}).collapse(0.0)
    assert said is not None and said.startswith("the policy has collapsed since step 3: valid groups 0.4 -> 0, ")
    assert "entropy 1 -> 0.01" in said and sign in said and "1 step with an update left out" in said


def test_given_a_figure_that_has_recovered_then_it_is_no_sign():
    assert "entropy" not in str(health(GOOD, GOOD | {"entropy": 0.01}, GOOD).collapse(0.0))


@given(st.lists(st.floats(0.985, 1.0), max_size=8), st.floats(0.0, 1.0))
def test_given_a_task_that_was_as_hard_from_the_start_then_the_policy_is_not_blamed(rejected, share):
    assert health(*({"rejected": one} for one in rejected)).collapse(share) is None


@given(st.floats(0.0, 0.9), st.floats(0.0, 1.0))
def test_given_nearly_as_many_valid_groups_as_before_then_the_policy_is_not_blamed(rejected, part):
    share = (1 - rejected) * (0.11 + 0.89 * part)
    assert health({"rejected": rejected}).collapse(share) is None
