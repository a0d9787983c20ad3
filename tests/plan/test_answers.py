"""Answers of a rehearsal: the same for every system, and continued where they were interrupted."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.rehearsal.answers import NUMBER_TOK, AnswerBook, Vocabulary

WORDS = Vocabulary(digits=tuple(range(10)), filler=20, right=(21,), wrong=(22,), end_of_text=23)
LIMIT_TOK = 4000


def book() -> AnswerBook:
    lengths = LogNormalLengths(median_tok=1000, sigma=0.9, correlation=0.5)
    return AnswerBook(lengths, 0.6, WORDS, limit_tok=LIMIT_TOK, n=4, seed=0)


def prompt(number: int) -> list[int]:
    return [100, number]


@given(st.lists(st.integers(0, 5), max_size=30))
def test_given_any_order_of_prompts_then_the_k_th_answer_to_one_is_always_the_same(order: list[int]) -> None:
    ordered, asked = book(), book()
    expected = {n: [ordered.take(prompt(n))[0] for _ in range(order.count(n))] for n in range(6)}
    got: dict[int, list[object]] = {n: [] for n in range(6)}
    for n in order:
        got[n].append(asked.take(prompt(n))[0])
    assert got == expected


@given(st.lists(st.integers(0, LIMIT_TOK), min_size=1, max_size=6))
def test_given_interruptions_anywhere_then_the_pieces_make_the_whole_answers(cuts: list[int]) -> None:
    drawn = book()
    answers = [drawn.take(prompt(1))[0] for _ in cuts]
    contexts = []
    for answer, cut in zip(answers, cuts, strict=True):
        done = min(cut, answer.length_tok - 1)
        contexts.append(prompt(1) + answer.tokens(0, done))
        drawn.put_back(contexts[-1], answer, done)
    continued = []
    for context in contexts:
        answer, done = drawn.take(context)
        continued.append((context + answer.tokens(done, answer.length_tok))[2:])
    assert sorted(continued) == sorted(answer.tokens(0, answer.length_tok) for answer in answers)


@given(st.integers(0, 200), st.integers(0, LIMIT_TOK), st.integers(0, LIMIT_TOK))
def test_given_any_two_positions_then_the_tokens_between_are_those_of_the_whole(number: int, a: int, b: int) -> None:
    answer, _ = book().take(prompt(number))
    start, stop = sorted((min(a, answer.length_tok), min(b, answer.length_tok)))
    whole = answer.tokens(0, answer.length_tok)
    assert len(whole) == answer.length_tok and answer.tokens(start, stop) == whole[start:stop]
    assert (whole[-1] == WORDS.end_of_text) is not answer.is_cut
    assert (21 in whole[NUMBER_TOK:]) is answer.is_right


def test_given_many_prompts_then_shares_lengths_and_likeness_are_the_asked_ones() -> None:
    drawn = book()
    groups = [[drawn.take(prompt(n))[0] for _ in range(4)] for n in range(2000)]
    valid = np.mean([len({answer.is_right for answer in group}) > 1 for group in groups])
    logs = np.log([[answer.length_tok for answer in group] for group in groups])
    assert abs(valid - 0.6) < 0.04
    assert abs(np.exp(np.median(logs)) / 1000 - 1) < 0.1
    assert 0.3 < np.corrcoef(logs[:, 0], logs[:, 1])[0, 1] < 0.6
