"""Lengths from the metrics of an earlier run: what was drawn is found again."""

import json
from pathlib import Path

import numpy as np
import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo_lab.plan.lengths import LogNormalLengths, load_lengths

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
