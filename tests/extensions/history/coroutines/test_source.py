"""Prompts that are skipped: which, how many at most, and that each comes back, once."""

from collections.abc import Iterator, Sequence
from itertools import count as counting
from itertools import cycle
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.config.options import Selection
from recipe.async_dapo.config.values import SelectBy
from recipe.async_dapo.core.mix import ALL, Mix
from recipe.async_dapo.core.over_sampling import OverSampling
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.extensions.history.source import HistorySource
from recipe.async_dapo.record.checkpoint_folder import DamagedCheckpoint
from recipe.async_dapo.training.checkpoints import to_bytes
from recipe.async_dapo.training.source import Source

from ....support.simulated_options import options

N = 8
HARD, MIXED = [0.0] * N, [0.0, 1.0] * (N // 2)


def group(number: int, key: str) -> PromptGroup:
    trajectories = [Trajectory(session_id=i) for i in range(N)]
    return PromptGroup(uid=f"uid-{number}", prompt={}, drawn_at_step=1, trajectories=trajectories, key=key)


class Keys(Source):
    """A loader of prompts with these names, again and again."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys: Iterator[str] = cycle(keys)
        self._numbers = counting()
        self.given: list[PromptGroup] = []

    def draw(self, count: int, step: int, part: str = ALL) -> list[PromptGroup]:
        groups = [group(next(self._numbers), next(self._keys)) for _ in range(count)]
        self.given += groups
        return groups


def source(loader: Source, by: SelectBy = SelectBy.HISTORY, **known: list[float]) -> HistorySource:
    selection = Selection(by=by, exploration=0.2, defer_steps=3)
    made = HistorySource(options(selection=selection), loader)
    for key, answers in known.items():
        made.history.observe(key, answers, [100] * len(answers))
    return made


@pytest.mark.parametrize(("worse", "better"), [(0.0, 1.0), (3, 7), (10, 100), (-2, 0), (-1, 1), (0.5, 0.501)])
def test_given_a_history_then_prompts_that_were_alike_are_skipped_most_and_unknown_ones_never(worse, better) -> None:
    known = {"hard": [worse] * N, "easy": [better] * N, "mixed": [worse, better] * (N // 2)}
    by_history, uniform = source(Keys("a"), **known), source(Keys("a"), SelectBy.UNIFORM, **known)

    def skipped(key: str) -> float:
        return sum(by_history.skips(group(i, key)) for i in range(1000)) / 1000

    assert skipped("unknown") == 0
    assert skipped("mixed") < 0.05
    assert 0.6 < skipped("hard") <= 0.8 and 0.6 < skipped("easy") <= 0.8
    assert not any(uniform.skips(group(i, "hard")) for i in range(100))


def test_a_source_that_has_a_mix_of_its_own_keeps_it_behind_a_history(monkeypatch: pytest.MonkeyPatch) -> None:
    loader, begun, over_sampling = Keys("a"), list[object](), OverSampling(target_valid_groups=4, batch_size=None)
    own = Mix(over_sampling)
    monkeypatch.setattr(loader, "mix", lambda asked: own if asked is over_sampling else None)
    monkeypatch.setattr(loader, "begin", begun.append)
    trainer: Any = object()
    made = source(loader)
    made.begin(trainer)
    assert made.mix(over_sampling) is own and begun == [trainer]


KEYS = st.lists(st.sampled_from(["hard 1", "hard 2", "hard 3", "mixed", "unknown"]), min_size=1, max_size=60)


@given(keys=KEYS, draws=st.lists(st.integers(1, 12), min_size=1, max_size=8), random=st.randoms())
def test_given_any_draws_then_each_prompt_is_drawn_or_waits_once_and_what_is_due_comes_first(
    keys: list[str], draws: list[int], random: Random
) -> None:
    loader = Keys(keys)
    known = dict.fromkeys(("hard 1", "hard 2", "hard 3"), HARD) | {"mixed": MIXED}
    drawing = source(loader, **known)
    for step, count in enumerate(draws, 1):
        if random.random() < 0.3:
            restored = source(loader)
            restored.restore(drawing.state())
            assert (restored.deferred, restored.history.counts) == (drawing.deferred, drawing.history.counts)
            drawing = restored
        waiting = {one.group.key: one for one in drawing.deferred}
        due = [one.group.uid for one in waiting.values() if one.until <= step]
        loader.given = []
        drawn, held = drawing.draw(count, step), {one.group.key: one for one in drawing.deferred}
        assert len(drawn) == count and drawing.held == len(held)
        assert [one.uid for one in drawn[: len(due)]] == due[:count], "what is due does not come first"
        assert len(loader.given) <= drawing.most_looked_at(count - len(due[:count]))
        fresh = {one.uid for one in loader.given}
        assert {one.key for one in loader.given} <= held.keys() | {one.key for one in drawn}, "a prompt has vanished"
        assert all(one.uid in fresh or one in [each.group for each in waiting.values()] for one in drawn)
        assert len({one.uid for one in drawn} | {one.group.uid for one in held.values()}) == count + len(held), "twice"
        assert all(held[key] == one for key, one in waiting.items() if key in held and held[key].group.uid not in fresh)
        assert all(one.until == step + 3 for key, one in held.items() if one.group.uid in fresh)


def test_given_uniform_selection_then_the_order_is_that_of_the_data_loader() -> None:
    loader = Keys(["hard"])
    uniform = source(loader, SelectBy.UNIFORM, hard=HARD)
    assert uniform.draw(20, 1) == loader.given
    assert not uniform.held


def test_given_a_deferred_prompt_when_it_is_visited_again_then_it_is_one_prompt_still() -> None:
    loader = Keys(["hard", "other"])
    drawing = source(loader, hard=HARD)
    drawing.skips = lambda one: one.key == "hard"  # type: ignore[method-assign]
    assert [one.uid for one in drawing.draw(2, 1)] == ["uid-1", "uid-3"]
    assert [(one.group.uid, one.until) for one in drawing.deferred] == [("uid-0", 4)]
    drawing.skips = lambda one: False  # type: ignore[method-assign]
    assert [one.uid for one in drawing.draw(1, 2)] == ["uid-0"] and not drawing.held


def test_given_a_part_then_what_is_due_of_another_one_waits_on() -> None:
    drawing = source(Keys(["hard", "other", "other"]), hard=HARD)
    drawing.skips = lambda one: one.key == "hard"  # type: ignore[method-assign]
    drawing.draw(1, 1)
    [waiting] = drawing.deferred
    waiting.group.prompt["data_source"] = "sums"
    assert [one.key for one in drawing.draw(1, 9, "code")] == ["other"] and drawing.held == 1
    assert drawing.draw(1, 9, "sums") == [waiting.group] and not drawing.held


def test_what_a_checkpoint_keeps_has_this_form_and_other_bytes_are_refused() -> None:
    """What fails here is another form: raise `FORMAT` of `record/checkpoint_folder.py`."""
    drawing = source(Keys(["hard", "other"]), hard=HARD)
    drawing.skips = lambda one: one.key == "hard"  # type: ignore[method-assign]
    drawing.draw(1, 1)
    right, wrong = b"\xa5right\xcb" + bytes(8), b"\xa5wrong\xcb@ " + bytes(6)
    count = right + wrong + b"\xa6visits\x01\xa7len_tok\xcb@Y" + bytes(6)
    deferred = b"\x82\xa5group" + to_bytes(group(0, "hard")) + b"\xa5until\x04"
    assert drawing.state() == b"\x82\xa6counts\x81\xa4hard\x84" + count + b"\xa8deferred\x91" + deferred
    for other in (b"", b"\x81", drawing.state()[:-1], to_bytes({"counts": {}})):
        with pytest.raises(DamagedCheckpoint):
            drawing.restore(other)
