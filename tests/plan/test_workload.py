"""Lengths and verdicts of the simulated data set; lengths that were measured, or that metrics of a run tell."""

import json
from pathlib import Path

import numpy as np
import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo_lab.plan.lengths import FITTED, LogNormalLengths, correlation_within, load_lengths
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
        ("lengths.jsonl", '{"response_length": "long"}', "row 0 has response_length=long; it must be a number"),
        ("lengths.jsonl", '{"response_length": null}', "row 0 has response_length=None"),
        ("lengths.jsonl", '{"response_lens_tok": 7}', "row 0 has response_lens_tok=7; it must be a list of numbers"),
        ("lengths.jsonl", '{"response_length": 7, "uid": [1]}', "row 0 has uid="),
        ("lengths.jsonl", '{"response_lens_tok": []}', "empty"),
        ("metrics.jsonl", json.dumps({"data": dict.fromkeys(FITTED, 0)}), "no step has response_length/mean"),
        ("metrics.jsonl", json.dumps({"data": dict.fromkeys(FITTED, "many")}), "no step has response_length/mean"),
        ("lengths.jsonl", None, r"no such file.*length_median_tok"),
    ],
)
def test_given_a_bad_file_of_lengths_then_the_error_says_what_is_wrong(tmp_path, name, text, words):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_lengths(str(path), default_correlation=0.5)


PROMPT_TOK = 200


def metrics_file(folder: Path, *, median_tok: float, sigma: float, limit_tok: int, count: int = 1024) -> Path:
    """Thirty steps of verl's own metrics, of responses that were drawn."""
    rng, lines = np.random.default_rng(0), []
    for step in range(30):
        lens_tok = np.minimum(np.rint(median_tok * np.exp(sigma * rng.standard_normal(count))), limit_tok)
        data = {
            "response_length/mean": lens_tok.mean(),
            "response_length/max": lens_tok.max(),
            "response_length/clip_ratio": (lens_tok == lens_tok.max()).mean(),
            "prompt_length/mean": PROMPT_TOK,
            "perf/total_num_tokens": lens_tok.sum() + count * PROMPT_TOK,
        }
        lines.append({"step": step, "data": data})
    return written(folder, lines)


def written(folder: Path, lines: list[dict]) -> Path:
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(("median_tok", "sigma"), [(4000, 0.9), (1500, 0.5), (9000, 0.75)])
@pytest.mark.parametrize("limit_tok", [16_384, 1_000_000])
def test_given_verls_metrics_then_median_and_sigma_are_those_of_the_responses(tmp_path, median_tok, sigma, limit_tok):
    path = metrics_file(tmp_path, median_tok=median_tok, sigma=sigma, limit_tok=limit_tok)
    found = load_lengths(str(path), default_correlation=0.3)
    assert isinstance(found, LogNormalLengths) and found.correlation == 0.3
    assert found.median_tok == pytest.approx(median_tok, rel=0.06)
    assert found.sigma == pytest.approx(sigma, rel=0.08)


def test_given_metrics_that_tell_no_lengths_then_it_says_what_to_give(tmp_path):
    with pytest.raises(ConfigError, match=r"lengths=.*no step has response_length/mean.*give measured lengths"):
        load_lengths(str(written(tmp_path, [{"step": 1, "data": {"loss": 1.0}}])), default_correlation=0.5)
    cut = metrics_file(tmp_path, median_tok=9000, sigma=0.5, limit_tok=4000)
    with pytest.raises(ConfigError, match="of the responses are cut"):
        load_lengths(str(cut), default_correlation=0.5)
