"""The task has what the quick start needs: a long tail, groups of every kind, and no way around the working."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo_lab.quickstart import task
from recipe.async_dapo_lab.quickstart.task import (
    QUICK_START,
    Problem,
    TaskShape,
    compute_score,
    dataset_rows,
    draw_problem,
)
from recipe.async_dapo_lab.quickstart.tiny_model import build_tokenizer

GROUP_SIZE = 8
PROBLEMS = st.builds(Problem, start=st.integers(0, 99), additions=st.integers(1, 99))


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def sample(count: int, *, seed: int = 0) -> list[Problem]:
    rng = random.Random(seed)
    return [draw_problem(rng, held_out=False) for _ in range(count)]


def score(problem: Problem, response: str) -> float:
    return compute_score(task.DATA_SOURCE, response, problem.answer)["acc"]


@given(PROBLEMS)
def test_given_a_problem_when_it_is_worked_out_then_the_last_step_holds_the_sum(problem):
    steps = problem.answer.split(" ")
    assert [int(step[:2]) for step in steps] == list(range(problem.additions, 0, -1))
    assert int(steps[-1][-1] + steps[-1][3]) == (problem.start + task.ADDEND * problem.additions) % 100


def test_given_the_example_of_the_docstring_when_worked_out_then_it_is_as_printed():
    assert Problem(start=47, additions=3).answer == "03:1'5 02:5_5 01:9_5"


@given(PROBLEMS, st.data())
def test_given_any_part_of_the_working_is_missing_or_wrong_when_scored_then_it_is_0(problem, data):
    answer = problem.answer
    index = data.draw(st.integers(0, len(answer) - 1))
    other = data.draw(st.sampled_from([c for c in "0123456789:'_ " if c != answer[index]]))
    assert score(problem, answer) == 1.0
    assert score(problem, answer[:index] + other + answer[index + 1 :]) == 0.0
    assert score(problem, answer[:index]) == 0.0
    assert score(problem, answer + " ") == 0.0


def test_given_many_problems_when_tokenised_then_lengths_have_a_long_tail_within_the_limits(tokenizer):
    lengths_tok = sorted(len(tokenizer.encode(problem.answer)) + 1 for problem in sample(20_000))
    median, p99 = lengths_tok[len(lengths_tok) // 2], lengths_tok[len(lengths_tok) * 99 // 100]
    assert 10 <= median <= 30
    assert p99 >= 8 * median
    assert lengths_tok[-1] < QUICK_START.max_response_tok


@given(st.integers(1, 99), st.integers(0, 98), st.floats(0.3, 8.0))
def test_given_a_shape_when_problems_are_drawn_then_they_keep_its_bounds_and_fit(shortest, more, exponent):
    shape = TaskShape(shortest=shortest, longest=min(99, shortest + more), tail_exponent=exponent)
    problem = draw_problem(random.Random(0), held_out=False, shape=shape)
    assert shape.shortest <= problem.additions <= shape.longest
    assert len(problem.answer) + 1 <= shape.max_response_tok


def test_given_the_careless_teacher_when_it_answers_in_groups_then_half_of_them_are_filtered():
    rng = random.Random(1)
    group_scores = [
        [score(problem, problem.careless_answer(rng)) for _ in range(GROUP_SIZE)] for problem in sample(2_000)
    ]
    filtered = statistics.fmean(len(set(scores)) == 1 for scores in group_scores)
    accuracy = statistics.fmean(statistics.fmean(scores) for scores in group_scores)
    assert 0.4 <= filtered <= 0.6
    assert 0.3 <= accuracy <= 0.55


def test_given_the_same_seed_when_rows_are_drawn_again_then_they_are_the_same():
    def rows(seed: int) -> list:
        return list(dataset_rows(200, seed=seed, held_out=False))

    assert rows(3) == rows(3)
    assert rows(3) != rows(4)


def test_given_both_splits_when_compared_then_no_problem_is_in_both():
    def questions(*, held_out: bool) -> set[str]:
        return {row["prompt"][0]["content"] for row in dataset_rows(4_000, seed=0, held_out=held_out)}

    assert not questions(held_out=True) & questions(held_out=False)
