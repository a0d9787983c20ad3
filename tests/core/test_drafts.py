"""Drafts from siblings: what is proposed, how long it is, and what it costs where nobody accepts it."""

import sys
from collections import Counter
from itertools import groupby, pairwise
from random import Random
from types import FrameType

from hypothesis import example, given, settings
from hypothesis import strategies as st

from recipe.async_dapo.core.draft_price import (
    CONTROLS,
    FIRST_REST,
    LONGEST_REST,
    MOST_DRAFT_TOK,
    NAP_STEPS,
    TRIED_EVERY,
    WATCHED_EVERY,
    Acceptance,
    Worth,
)
from recipe.async_dapo.core.drafts import Drafter, GroupIndex, Groups, RequestName

TEXT = list(range(100, 1400))
STEP_S = 0.03

tokens = st.lists(st.integers(0, 5), max_size=120)


def named(answer: object, group: str = "g") -> RequestName:
    return RequestName(group, str(answer), 0)


def without_controls() -> Drafter:
    drafter = Drafter()
    drafter.worth.is_control = lambda rows: False
    return drafter


def indexed(*answers: list[int]) -> GroupIndex:
    index = GroupIndex()
    for number, answer in enumerate(answers):
        index.add(index.answer(str(number), answer), len(answer))
    return index


def found(index: GroupIndex, end: list[int]) -> tuple[list[int], int]:
    """What follows these tokens, and how many of them agree."""
    match = index.find(index.answer("asking", end))
    assert match is not None
    source, at, length = match
    return source.tokens[at : at + 3], length


def run(
    drafter: Drafter,
    say,
    *,
    rows: int,
    steps: int,
    row_s: float = 1e-4,
    token_s: float = 1e-6,
    noise: float = 0.0,
    since_s: float | None = None,
) -> tuple[float, int, int]:
    """An engine that accepts what its model says. Returns (the time, tokens, drafted tokens)."""
    names, random = [f"g.{row}.0.x" for row in range(rows)], Random(0)
    drafts: list[list[int]] = [[] for _ in names]
    if since_s is None:
        for row, name in enumerate(names):
            drafter.begin(name, named(row), [])
    now_s, all_tok, all_drafted = since_s or 0.0, 0, 0
    for _ in range(steps):
        now_s += (STEP_S + row_s * rows) * max(0.3, random.gauss(1, noise)) + token_s * sum(map(len, drafts))
        sampled: list[list[int]] = [[] for _ in names]
        for row, said in enumerate(sampled):
            for drafted in [*drafts[row], None]:
                said.append(say(row))
                if said[-1] != drafted:
                    break
            all_tok += len(said)
        drafts = drafter.step(names, sampled, now_s, 0.0)
        all_drafted += sum(map(len, drafts))
    return now_s, all_tok, all_drafted


def test_given_a_name_with_dots_when_parsed_then_it_is_what_was_written():
    name = RequestName("a.b", "3-0", 17)
    assert RequestName.parse(name.prefix() + "0f-1b2c") == name
    assert RequestName.parse("0f1b2c-aa") is None
    assert RequestName.parse("cmpl.x.y.z") is None


def test_given_a_sibling_when_an_answer_comes_to_its_words_then_its_continuation_is_found_by_the_longest_match():
    index = indexed(TEXT)
    for length in (8, 5, 3):
        end = [-1] * 9 + TEXT[40 : 40 + length]
        assert found(index, end) == (TEXT[40 + length : 43 + length], length)
    assert index.find(index.answer("short", TEXT[:2])) is None
    assert index.find(index.answer("other", [7, 8, 9])) is None


def test_given_siblings_that_differ_when_asked_then_most_of_them_win_whoever_came_last():
    index = indexed([1, 2, 3, 7, 7], [1, 2, 3, 7, 7], [1, 2, 3, 9, 9])
    assert found(index, [1, 2, 3]) == ([7, 7], 3)
    late = indexed([1, 2, 3, 7, 7], [1, 2, 3, 9, 9], [1, 2, 3, 9, 9])
    assert found(late, [1, 2, 3]) == ([9, 9], 3)


@given(st.lists(tokens, min_size=1, max_size=5), tokens)
def test_given_any_answers_when_something_is_found_then_its_tokens_agree_and_something_follows(answers, end):
    index = indexed(*answers)
    asking = index.answer("asking", end)
    match = index.find(asking)
    if match is None:
        runs = {tuple(each[at - 3 : at]) for each in answers for at in range(3, len(each))}
        assert tuple(end[-3:]) not in runs
        return
    source, at, length = match
    assert source.tokens[at - length : at] == end[-length:]
    assert at < len(source.tokens)


@given(st.lists(tokens, min_size=1, max_size=6))
def test_given_an_answer_in_any_pieces_when_indexed_then_it_is_as_if_it_had_come_at_once(pieces):
    whole, slowly = [token for piece in pieces for token in piece], GroupIndex()
    answer = slowly.answer("0", [])
    for piece in pieces:
        answer.tokens.extend(piece)
        while slowly.add(answer, 7):
            pass
    at_once = indexed(whole)
    for at in range(3, len(whole)):
        asked = [index.find(index.answer(f"asking {at}", whole[:at])) for index in (slowly, at_once)]
        assert len({None if match is None else match[1:] for match in asked}) == 1


def test_given_a_request_that_continues_an_answer_when_it_begins_then_what_is_known_is_not_added_again():
    index = GroupIndex()
    first = index.answer("0", TEXT[:50])
    assert index.answer("0", TEXT[:60]) is first and index.size_tok == 60
    again = index.answer("0", [*TEXT[:20], 7])  # the rest was lost
    assert again is not first and again.tokens == [*TEXT[:20], 7]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), max_size=60))
def test_given_any_order_of_requests_when_there_is_a_limit_then_no_more_tokens_are_kept(requests):
    drafter, limit_tok = Drafter(limit_tok=100), 100
    for number, (group, count) in enumerate(requests):
        drafter.begin(f"r{number}", named(number, f"g{group}"), TEXT[:count])
        drafter.step([f"r{number}"], [[1]], 0.0, 0.0)
        assert drafter.size_tok <= limit_tok
        if number % 3:
            drafter.keep_only({f"r{number}"})
    drafter.keep_only(set())
    drafter.begin("last", named(0, "new"), TEXT[:90])
    assert len(drafter) == 1 and drafter.size_tok <= limit_tok


def test_given_groups_that_nobody_uses_when_room_is_needed_then_the_one_unused_for_longest_goes():
    groups = Groups(limit_tok=10)
    for name in "abc":
        index = groups.use(name)
        index.answer("0", [1, 2, 3])
        groups.size_tok += 3
    groups.release("b")
    groups.release("a")
    assert groups.has_room(4) and groups.size_tok == 6
    assert groups.use("a").size_tok == 3 and groups.use("b").size_tok == 0
    assert not groups.has_room(5)


def test_given_answers_that_repeat_a_sibling_when_verifying_is_cheap_then_steps_yield_several_tokens():
    place = [0, -40, -60, -80]

    def say(row: int) -> int:
        place[row] += 1
        return TEXT[place[row]] if place[row] > 0 else 1000 * row - place[row]

    steps = 150
    _, all_tok, _ = run(Drafter(), say, rows=4, steps=steps)
    assert all_tok >= 4 * steps + 40 + 60 + 80, "those behind have not caught up"


def test_given_answers_of_an_earlier_visit_when_one_comes_to_their_words_then_they_are_its_drafts():
    drafter = without_controls()
    drafter.learn("g", [TEXT[:200], TEXT[600:800]])
    drafter.begin("a", named("a"), TEXT[:3])
    drafts: list[list[int]] = [[]]
    for at in range(3, 40):
        drafts = drafter.step(["a"], [[TEXT[at]]], at * STEP_S, 0.0)
    assert drafts[0] == TEXT[40 : 40 + len(drafts[0])] and len(drafts[0]) > 1


def test_given_answers_of_earlier_visits_when_room_is_short_then_those_that_run_have_the_rest_of_it():
    drafter = Drafter(limit_tok=400)
    drafter.begin("a", named("a"), TEXT[:100])
    for group in range(9):
        drafter.learn(f"h{group}", [TEXT[:90], TEXT[100:190]])
        assert drafter.size_tok <= 300
    drafter.begin("b", named("b"), TEXT[:100])
    drafter.learn("g", [TEXT[:200]])
    assert len(drafter) == 2 and drafter.size_tok <= 400


def test_given_a_draft_when_the_model_goes_another_way_then_the_next_one_starts_from_there():
    drafter = without_controls()
    drafter.begin("a", named("a"), TEXT[:100])
    drafter.begin("b", named("b"), TEXT[:3])
    assert drafter.step(["a", "b"], [[], []], 0.0, 0.0) == [[], []], "nothing is sampled yet"
    for at in range(100, 140):
        drafts = drafter.step(["a", "b"], [[TEXT[at]], [TEXT[at - 97]]], at * STEP_S, 0.0)
    assert drafts[1] == TEXT[43 : 43 + len(drafts[1])] and len(drafts[1]) > 1
    sampled = [[7], [TEXT[43], TEXT[80], TEXT[81], TEXT[82]]]
    assert drafter.step(["a", "b"], sampled, 141 * STEP_S, 0.0)[1][:1] == [TEXT[83]]
    assert drafter.step(["nobody"], [[1]], 142 * STEP_S, 0.0) == [[]]


@settings(max_examples=16, deadline=None)
@example(2, 1e-5, 1.0, 0.0, 0)
@given(
    st.integers(2, 32),
    st.floats(1e-5, 3e-3),
    st.floats(0.0, 1.0),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.integers(0, 99),
)
def test_given_drafts_that_nobody_accepts_when_an_engine_runs_then_they_take_a_fiftieth_of_its_time_at_most(
    rows, row_s, price, noise, seed
):
    """Whatever a token costs, up to as much as a row, and however step times vary; from the first step on."""
    random = Random(seed)
    last: dict[int, list[int]] = {row: [] for row in range(rows)}

    def say(row: int) -> int:
        """Runs of three that all know, and behind them what nobody else says."""
        said = last[row]
        said.append(len(said) % 4 if len(said) % 4 < 3 else random.randrange(10**6))
        return said[-1]

    step_s, steps = STEP_S + row_s * rows, 400
    token_s = price * step_s / rows
    _, all_tok, drafted_tok = run(Drafter(), say, rows=rows, steps=steps, row_s=row_s, token_s=token_s, noise=noise)
    gained_s = (all_tok - rows * steps) / rows * step_s
    assert token_s * drafted_tok - gained_s <= 0.02 * steps * step_s


def test_given_more_requests_when_none_finds_a_draft_then_each_takes_two_calls_of_a_step_and_one_look_up():
    few, many = calls_of_a_step(rows=64), calls_of_a_step(rows=256)
    assert few["step"] == 1 and few["find"] == 64
    assert many.total() - few.total() == 2 * (256 - 64), many


def calls_of_a_step(rows: int) -> Counter[str]:
    """Of Python functions, before there is enough to index."""
    drafter, names, calls = Drafter(), [f"g{row}.0.0.x" for row in range(rows)], Counter[str]()
    for row, name in enumerate(names):
        drafter.begin(name, named(0, f"g{row}"), [])

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code.co_name] += 1

    for at in range(6):
        calls.clear()
        sys.setprofile(note)
        drafter.step(names, [[at] for _ in names], at * STEP_S, 0.0)
        sys.setprofile(None)
    return calls


def test_given_many_drafts_that_were_accepted_when_nobody_accepts_them_any_more_then_after_two_hundred_there_are_none():
    acceptance = Acceptance()
    acceptance.note(2, MOST_DRAFT_TOK, MOST_DRAFT_TOK, 1000)
    for _ in range(1000):
        acceptance.note(2, MOST_DRAFT_TOK, MOST_DRAFT_TOK, 1)
    assert acceptance.lengths(0.25)[2] == MOST_DRAFT_TOK
    for _ in range(200):
        acceptance.note(2, MOST_DRAFT_TOK, 0, 1)
    assert acceptance.lengths(0.25)[2] == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, MOST_DRAFT_TOK), st.integers(0, 7)), max_size=80))
def test_given_any_outcomes_when_more_is_asked_of_a_draft_then_it_is_never_longer(outcomes):
    acceptance = Acceptance()
    for level, drafted, accepted in outcomes:
        acceptance.note(level, drafted, min(drafted, accepted), 1)
    asked = [acceptance.lengths(least) for least in (0.0, 0.01, 0.2, 0.5, 0.9, 1.01)]
    assert asked[0] == [MOST_DRAFT_TOK] * 5 and asked[-1] == [0] * 5
    assert all(a >= b for more, less in pairwise(asked) for a, b in zip(more, less, strict=True))


def test_given_steps_that_take_no_longer_with_drafts_when_compared_then_verifying_is_cheap_and_else_it_is_not():
    prices = []
    for token_s in (1e-6, 2e-3):
        random, drafter = Random(0), Drafter()
        for _ in range(400):
            drafted = random.randrange(60)
            drafter.price.note(STEP_S + drafted * token_s, rows=32, drafted_tok=drafted, tokens=40)
        prices.append(drafter.price)
    assert prices[0].token_s < 1e-4 < prices[1].token_s < 3e-3
    assert prices[0].least_probability < 0.1 and prices[1].least_probability > 1


TRIAL, WATCH = TRIED_EVERY * CONTROLS, WATCHED_EVERY * CONTROLS  # steps until drafting is compared with its control
COSTLY = {"rows": 32, "drafter_s": 0.1 * STEP_S, "tokens": 34}
WORTH_IT = {"rows": 32, "drafter_s": 0.1 * STEP_S, "tokens": 36}


def decode(worth: Worth, *, rows: int, steps: int, drafter_s: float, tokens: int) -> list[bool]:
    """Steps of an engine that samples so many tokens where it is no control. Says of each whether a drafter rests."""
    resting = []
    for _ in range(steps):
        resting.append(worth.rests(rows))
        if not resting[-1]:
            is_control = worth.is_control(rows)
            done, step_s = rows if is_control else tokens, STEP_S + drafter_s
            worth.note(step_s, rows=rows, tokens=done, drafter_s=drafter_s, is_control=is_control)
    return resting


def runs(resting: list[bool], is_resting: bool) -> list[int]:
    """Lengths of those that are over [steps]."""
    *ended, _ = [(kind, len(list(run))) for kind, run in groupby(resting)]
    return [steps for kind, steps in ended if kind is is_resting]


def test_given_a_drafter_that_takes_more_than_it_saves_when_compared_then_it_rests_and_each_time_twice_as_long():
    resting = decode(Worth(), steps=6 * LONGEST_REST, **COSTLY)
    expected = [FIRST_REST * 2**number for number in range(6)] + [LONGEST_REST] * 3
    rests = runs(resting, True)[: len(expected)]
    assert all(rest <= steps <= rest + 2 * NAP_STEPS for rest, steps in zip(expected, rests, strict=True))
    assert all(abs(steps - TRIAL) <= NAP_STEPS for steps in runs(resting, False)), "it tries for as long as it has to"
    assert sum(resting) > 0.99 * len(resting)


def test_given_drafts_that_save_more_than_they_take_when_compared_then_none_rests_and_few_steps_are_controls():
    worth = Worth()
    assert not any(decode(worth, steps=TRIAL + 1 + 20 * WATCH, **WORTH_IT))
    assert sum(worth.is_control(WORTH_IT["rows"]) for _ in range(WATCH)) == CONTROLS


def test_given_drafts_that_have_paid_meanwhile_when_they_no_longer_do_then_the_rest_is_short_again():
    worth = Worth()
    decode(worth, steps=4 * LONGEST_REST, **COSTLY)
    decode(worth, steps=2 * LONGEST_REST, **WORTH_IT)
    rest, *_ = runs(decode(worth, steps=WATCH + 2 * FIRST_REST, **COSTLY), True)
    assert rest <= FIRST_REST + 2 * NAP_STEPS


def test_given_a_drafter_that_rests_when_the_load_changes_then_it_wakes_up_only_where_that_lasts():
    worth = Worth()
    decode(worth, steps=40 * FIRST_REST, **COSTLY)
    for _ in range(50):  # dips, at any place in a nap
        assert all(decode(worth, rows=4, steps=7, drafter_s=0.0, tokens=8))
        assert all(decode(worth, steps=2 * NAP_STEPS - 7, **COSTLY))
    assert sum(decode(worth, rows=4, steps=WATCH, drafter_s=0.0, tokens=8)) <= 3 * NAP_STEPS


def test_given_a_drafter_that_has_rested_when_it_is_awake_then_it_knows_what_was_said_before():
    drafter, naps = Drafter(), iter([True, True, False])
    drafter.learn("g", [TEXT[:200]])
    drafter.begin("a", named("a"), TEXT[:50])
    for at in range(50, 60):
        drafter.step(["a"], [[TEXT[at]]], at * STEP_S, 0.0)
    drafter.worth.rests = lambda rows: next(naps)
    assert drafter.rests(1) and drafter.rests(1) and len(drafter) == 0
    assert not drafter.rests(1)
    drafter.begin("a", named("a"), TEXT[:62])
    assert drafter.size_tok == 200 + 62
    assert drafter.step(["a"], [[TEXT[62]]], 63 * STEP_S, 0.0)[0][:1] == [TEXT[63]]


def test_given_requests_without_drafts_in_the_batch_when_drafting_does_not_pay_then_it_rests_at_that_load():
    drafter, known, others = Drafter(), [f"g.{row}.0.x" for row in range(20)], [f"cmpl-{row}" for row in range(20)]
    for row, name in enumerate(known):
        drafter.begin(name, named(row), [])
    now_s, steps = 0.0, 0
    while not drafter.rests(len(known + others)):
        now_s, steps = now_s + STEP_S, steps + 1
        drafter.step(known + others, [[steps] for _ in known + others], now_s, 0.1 * STEP_S)
        assert steps < 2 * TRIAL
    assert steps >= TRIAL
