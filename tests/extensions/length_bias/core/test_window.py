"""The length-bias window: what was trained against what was started."""

import pytest

from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.extensions.length_bias.window import LengthBiasWindow, mean_tok, quantile_tok


def ended(uid: str, length_tok: int, verdict: Verdict = Verdict.VALID) -> GroupOutcome:
    return GroupOutcome(prompt_uid=uid, verdict=verdict, response_lens_tok=(length_tok, length_tok))


def unfinished(uid: str, length_tok: int) -> PromptGroup:
    trajectories = [Trajectory(session_id=k, outputs=[], finished_stamps=((0, length_tok),)) for k in range(2)]
    return PromptGroup(uid=uid, prompt={}, drawn_at_step=1, trajectories=trajectories)


def test_given_short_groups_trained_and_long_ones_interrupted_then_the_means_show_it() -> None:
    window = LengthBiasWindow(10)
    window.observe([ended("short", 10)], [unfinished("long", 90)])
    window.mark_trained(["short"])
    assert (mean_tok(window.trained), mean_tok(window.dispatched)) == (10, 50)


def test_given_an_interrupted_group_when_it_is_started_again_then_its_longest_attempt_counts_once() -> None:
    window = LengthBiasWindow(10)
    window.observe([], [unfinished("group", 90)])
    window.observe([], [unfinished("group", 20)])
    assert mean_tok(window.dispatched) == 90
    window.observe([ended("group", 100)], [])
    window.mark_trained(["group"])
    assert (mean_tok(window.trained), mean_tok(window.dispatched)) == (100, 100)


def test_given_a_long_attempt_thrown_away_when_a_short_one_is_trained_then_the_means_show_it() -> None:
    window = LengthBiasWindow(10)
    window.observe([], [unfinished("group", 90)])
    window.observe([ended("group", 20)], [])
    window.mark_trained(["group"])
    restored = LengthBiasWindow(10)
    restored.restore(window.state())
    for one in (window, restored):
        assert (mean_tok(one.trained), mean_tok(one.dispatched)) == (20, 90)


@pytest.mark.parametrize("verdict", [Verdict.FILTERED, Verdict.FAILED])
def test_given_a_group_that_the_filter_or_a_failure_removed_then_it_is_on_neither_side(verdict: Verdict) -> None:
    window = LengthBiasWindow(10)
    window.observe([], [unfinished("group", 90)])
    window.observe([ended("group", 100, verdict), ended("other", 10)], [])
    assert mean_tok(window.dispatched) == 10


def test_given_a_group_that_was_set_aside_then_it_still_counts_as_dispatched() -> None:
    window = LengthBiasWindow(10)
    window.observe([ended("group", 90, Verdict.SET_ASIDE), ended("short", 10)], [unfinished("group", 90)])
    assert mean_tok(window.dispatched) == 50


def test_given_more_groups_than_the_window_then_the_oldest_are_forgotten() -> None:
    window = LengthBiasWindow(2)
    for k in range(5):
        window.observe([ended(f"group-{k}", k)], [])
    window.mark_trained(["group-0", "group-4"])
    assert (mean_tok(window.trained), mean_tok(window.dispatched)) == (4, 3.5)


@pytest.mark.parametrize(("q", "length_tok"), [(0.0, 1), (0.5, 5), (0.51, 6), (0.9, 9), (1.0, 10)])
def test_quantiles_are_lengths_that_occurred(q: float, length_tok: int) -> None:
    window = LengthBiasWindow(20)
    window.observe([ended(f"group-{k}", k) for k in range(1, 11)], [])
    assert quantile_tok(window.dispatched, q) == length_tok
