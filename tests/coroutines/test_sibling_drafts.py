"""vLLM's proposer: which requests of a batch it drafts for, and what it knows of them."""

from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm.sampling_params import SamplingParams

from benchmarks.side_by_side.verl_drafts import VerlDrafts
from recipe.async_dapo.core.draft_price import MOST_DRAFT_TOK, Worth
from recipe.async_dapo.core.drafts import Drafter
from recipe.async_dapo.engines import drafts
from recipe.async_dapo.engines.drafts import SPECULATIVE_CONFIG, SiblingDrafts, room_for_drafts

PROMPT = [1, 2]
TEXT = list(range(10, 400))
STEP_S = 0.02


class Batch:
    """vLLM's model runner as far as the proposer sees it: answers that all follow `TEXT`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.tokens: dict[str, list[int]] = {}
        self.requests: dict[str, Any] = {}
        self.input_batch = SimpleNamespace(req_ids=[])
        self.proposer = SiblingDrafts(SimpleNamespace())
        self.drafts: dict[str, list[int]] = {}
        monkeypatch.setattr(drafts.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(Worth, "is_control", lambda worth, rows: False)

    def add(self, name: str, context: list[int], **params: Any) -> None:
        self.tokens[name] = [*PROMPT, *context]
        self.requests[name] = SimpleNamespace(sampling_params=SamplingParams(**params))
        self.input_batch.req_ids.append(name)

    def end(self, name: str) -> None:
        del self.requests[name], self.tokens[name]
        self.input_batch.req_ids.remove(name)

    def step(self, *, waiting: tuple[str, ...] = ()) -> None:
        self.now_s += STEP_S
        sampled = []
        for name in self.input_batch.req_ids:
            said = len(self.tokens[name]) - len(PROMPT)
            count = 0 if name in waiting else 1 + len(self.drafts.get(name, []))
            sampled.append(TEXT[said : said + count])
            assert sampled[-1][:-1] == self.drafts.get(name, [])[: len(sampled[-1]) - 1], "a draft that is none of TEXT"
            self.tokens[name] += sampled[-1]
        lengths = np.array([len(self.tokens[name]) for name in self.input_batch.req_ids], dtype=np.int32)
        context = np.zeros((len(lengths), 1000), dtype=np.int32)
        for row, name in enumerate(self.input_batch.req_ids):
            context[row, : lengths[row]] = self.tokens[name]
        proposed = self.proposer.propose(sampled, lengths, context, slot_mappings=None)
        self.drafts = dict(zip(self.input_batch.req_ids, proposed, strict=True))


@pytest.fixture
def batch(monkeypatch: pytest.MonkeyPatch) -> Batch:
    batch = Batch(monkeypatch)
    batch.proposer.bind(batch)
    return batch


def test_given_a_resumed_sibling_when_others_come_to_its_words_then_they_get_drafts_of_it(batch):
    batch.add("group.0-1.2.a-x", TEXT[:80])  # the prompt, and the answer so far
    batch.add("group.1-1.2.b-x", [])
    batch.add("other.0-1.2.c-x", [])
    for _ in range(12):
        batch.step()
    assert 0 < len(batch.drafts["group.1-1.2.b-x"]) <= MOST_DRAFT_TOK
    assert batch.drafts["other.0-1.2.c-x"] == [], "another prompt's answers are none of its siblings"


def test_given_a_request_that_has_ended_when_a_sibling_goes_on_then_it_still_copies(batch):
    batch.add("group.0-1.2.a-x", TEXT[:80])
    batch.step()
    batch.end("group.0-1.2.a-x")
    batch.add("group.1-1.2.b-x", [])
    for _ in range(12):
        batch.step()
    assert batch.drafts["group.1-1.2.b-x"]


def test_given_answers_of_an_earlier_visit_when_the_group_comes_to_their_words_then_it_gets_drafts_of_them(batch):
    batch.proposer.learn("group", [array("i", TEXT[:80]).tobytes()])
    batch.add("group.1-1.2.b-x", [])
    batch.add("other.1-1.2.b-x", [])
    for _ in range(12):
        batch.step()
    assert batch.drafts["group.1-1.2.b-x"] and not batch.drafts["other.1-1.2.b-x"]


def test_given_answers_that_there_is_no_room_for_when_told_them_then_it_says_how_many(batch, monkeypatch):
    monkeypatch.setattr(batch.proposer, "_drafter", Drafter(limit_tok=100))
    answers = [array("i", tokens).tobytes() for tokens in (TEXT[:50], TEXT[100:150], TEXT[:10])]
    assert batch.proposer.learn("group", answers) == 1


def test_what_a_step_takes_is_a_mean_over_the_steps_since_it_was_last_asked_for(batch, monkeypatch):
    batch.add("group.1-1.2.b-x", [])
    clock = iter([0.0, 0.5, 10.0, 10.1, 20.0, 20.4])  # begin and end of three steps
    monkeypatch.setattr(drafts.time, "monotonic", lambda: next(clock))
    batch.step()
    batch.step()
    assert batch.proposer.take_step_s() == pytest.approx(0.3)
    batch.step()
    assert batch.proposer.take_step_s() == pytest.approx(0.4)
    assert batch.proposer.take_step_s() == 0.0


@pytest.mark.parametrize(("name", "params"), [("cmpl-1", {}), ("group.1-1.2.b-x", {"stop": ["end"]})])
def test_given_a_request_without_a_group_or_with_stop_strings_when_it_runs_then_it_gets_no_drafts(batch, name, params):
    batch.add("group.0-1.2.a-x", TEXT[:80])
    batch.add(name, [], **params)
    for _ in range(12):
        batch.step()
        assert batch.drafts[name] == []


def test_given_a_prompt_that_is_not_computed_yet_when_others_decode_then_its_row_stays_empty(batch):
    batch.add("group.0-1.2.a-x", TEXT[:80])
    batch.add("group.1-1.2.b-x", [])
    for _ in range(3):
        batch.step(waiting=("group.1-1.2.b-x",))
        assert batch.drafts["group.1-1.2.b-x"] == []
    for _ in range(12):
        batch.step()
    assert batch.drafts["group.1-1.2.b-x"]


def test_given_a_proposer_that_is_not_bound_when_asked_then_it_proposes_nothing(monkeypatch):
    batch = Batch(monkeypatch)
    batch.add("group.0-1.2.a-x", TEXT[:80])
    batch.step()
    assert batch.drafts == {"group.0-1.2.a-x": []}


def test_an_engine_gets_room_for_drafts_behind_the_longest_response_where_its_model_has_it():
    longest = [room_for_drafts(7, max_model_len=100, most_context_tok=most) for most in (1000, 103, 100, 90)]
    assert longest == [107, 103, 100, 100]
    assert SPECULATIVE_CONFIG["model"] == "recipe.async_dapo.engines.drafts.SiblingDrafts"


def test_given_verls_requests_without_names_then_they_are_answers_to_what_their_context_begins_with(monkeypatch):
    batch = Batch(monkeypatch)
    batch.proposer = VerlDrafts(SimpleNamespace())  # bound to what calls it
    batch.add("a", [])
    batch.step()
    batch.add("b", TEXT[:80])  # continues an answer
    batch.add("c", [])
    batch.tokens["c"] = [8, 9]
    for _ in range(12):
        batch.step()
    assert 0 < len(batch.drafts["a"]) <= MOST_DRAFT_TOK
    assert batch.drafts["c"] == [], "another prompt's answers are none of its siblings"


def test_given_a_drafter_that_rests_when_it_wakes_up_then_all_that_run_get_drafts_again(batch, monkeypatch):
    batch.add("group.0-1.2.a-x", TEXT[:80])
    batch.add("group.1-1.2.b-x", [])
    batch.step()
    with monkeypatch.context() as asleep:
        asleep.setattr(Drafter, "rests", lambda self, rows: True)
        batch.add("group.2-1.2.c-x", [])
        for _ in range(6):
            batch.step()
            assert not any(batch.drafts.values())
    for _ in range(12):
        batch.step()
    assert batch.drafts["group.1-1.2.b-x"] and batch.drafts["group.2-1.2.c-x"]
