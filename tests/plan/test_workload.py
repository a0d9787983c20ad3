"""Lengths and verdicts of the simulated data set."""

import json

import numpy as np
import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo_lab.plan.lengths import LogNormalLengths, correlation_within, load_lengths
from recipe.async_dapo_lab.plan.workload import Workload

LENGTHS = LogNormalLengths(median_tok=1000, sigma=0.8, correlation=0.5)


def lens_of(workload: Workload, groups: int) -> np.ndarray:
    return np.array([answers.response_lens_tok for answers in workload.answers(groups)])


def workload(lengths=LENGTHS, valid_share=0.5, *, seed: int = 0) -> Workload:
    return Workload(lengths, valid_share, n=8, limit_tok=8000, seed=seed)


def test_given_a_seed_when_drawn_in_other_portions_then_the_answers_are_the_same():
    at_once, in_portions = workload(), workload()
    portions = [lens_of(in_portions, count) for count in (3, 1500, 1)]
    assert (lens_of(at_once, 1504) == np.concatenate(portions)).all()
    assert (lens_of(workload(seed=1), 8) != lens_of(workload(), 8)).any()


def test_given_log_normal_lengths_then_median_spread_correlation_and_limit_are_as_asked():
    lens_tok = lens_of(workload(), 4000)
    inside = np.log(lens_tok[lens_tok < 8000])
    assert np.median(lens_tok) == pytest.approx(1000, rel=0.05)
    assert inside.std() == pytest.approx(0.8, rel=0.06)
    assert correlation_within(lens_tok[:500].tolist(), default=0) == pytest.approx(0.5, abs=0.06)
    assert lens_tok.max() == 8000 and lens_tok.min() >= 1


@pytest.mark.parametrize("form", ["row per response", "row per group", "bare numbers"])
def test_given_measured_lengths_in_any_form_then_they_are_drawn_again(tmp_path, form):
    groups = np.random.default_rng(0).lognormal(7, 0.5, size=(200, 1)) * np.full((1, 4), 1.0)
    rows = [{"uid": str(i), "response_length": float(n)} for i, group in enumerate(groups) for n in group]
    path = tmp_path / "lengths.jsonl"
    if form == "row per group":
        rows = [{"response_lens_tok": group.tolist()} for group in groups]
    if form == "bare numbers":
        path.write_text("\n".join(str(n) for n in groups.ravel()))
    else:
        path.write_text("\n".join(map(json.dumps, rows)))

    lengths = load_lengths(str(path), default_correlation=0.2)

    drawn = lens_of(workload(lengths), 1000)
    assert np.median(drawn) == pytest.approx(np.median(groups), rel=0.1)
    assert lengths.correlation == pytest.approx(0.2 if form == "bare numbers" else 1.0)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("lengths.jsonl", "", "empty"),
        ("lengths.jsonl", '{"tokens": 3}', "has neither response_length nor response_lens_tok"),
        ("lengths.jsonl", "{", "line 1 is not JSON"),
        ("lengths.jsonl", '{"response_length": 0}', "not a number > 0"),
        ("lengths.jsonl", '{"response_lens_tok": []}', "empty"),
        ("lengths.jsonl", None, r"no such file.*length_median_tok"),
    ],
)
def test_given_a_bad_file_of_lengths_then_the_error_says_what_is_wrong(tmp_path, name, text, words):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_lengths(str(path), default_correlation=0.5)
