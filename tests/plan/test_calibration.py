"""Costs fitted to records of real engines."""

import json
import random

import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo_lab.plan.calibration import calibrate

from ..support.plan_settings import small_scenario

BASE_S, PER_REQUEST_S = 0.004, 0.0005


def write(path, rows) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_given_throughputs_with_cache_sizes_then_all_three_terms_are_found(tmp_path):
    rng = random.Random(1)
    rows = []
    for _ in range(50):
        inflight, kv_tok = rng.randint(1, 200), rng.randint(1000, 600_000)
        step_s = BASE_S + PER_REQUEST_S * inflight + 4e-8 * kv_tok
        rows.append({"inflight": inflight, "kv_tok": kv_tok, "tokens_per_s": inflight / step_s})
    fitted = calibrate(write(tmp_path / "t.jsonl", rows))
    assert (fitted.base_s, fitted.per_request_s, fitted.per_kv_token_s) == pytest.approx((BASE_S, PER_REQUEST_S, 4e-8))


def test_given_a_measured_step_then_a_simulated_engine_takes_it_and_prefills_by_arithmetic(tmp_path):
    measured = calibrate(write(tmp_path / "one.jsonl", [{"inflight": 8, "tokens_per_s": 1000}]))
    plain, fitted = small_scenario().step_cost(), small_scenario(measured=measured).step_cost()
    assert fitted.decode_s(1, 8, 0) == pytest.approx(0.008) != plain.decode_s(1, 8, 0)
    assert fitted.prefill_s(1000) == plain.prefill_s(1000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("[1]", "the file is empty"),
        ("{", "line 1 is not JSON"),
        ('{"inflight": 3}', "no line can be used"),
        ('{"inflight": 0, "tokens_per_s": 1}', "no line can be used"),
        (
            '{"inflight": 1, "kv_tok": 100, "tokens_per_s": 10}\n{"inflight": 1, "kv_tok": 200, "tokens_per_s": 5}',
            "take no time per token",
        ),
    ],
)
def test_given_a_bad_record_then_the_error_says_what_a_line_needs(tmp_path, text, words):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        calibrate(str(path))
