"""Costs fitted to records of real runs."""

import json
import random

import pytest

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo_lab.plan.calibration import calibrate
from recipe.async_dapo_lab.plan.costs import ServerConstants
from recipe.async_dapo_lab.plan.systems import recipe, verl_sync

from ..support.plan_settings import mean_step, simulate, small_scenario

COSTS = ServerConstants(step_overhead_ms=1.5, request_overhead_ms=0.03, prefill_flop_share=0.5)
BASE_S, PER_REQUEST_S = 0.004, 0.0005


def write(path, rows) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def logged(*, rollout_s: float, trained: float, inflight: float, **more: float) -> dict:
    """A line of a metrics log."""
    data = {
        "async_dapo/round/rollout_s": rollout_s,
        "async_dapo/tokens/trained": trained,
        "async_dapo/load_balancer/inflight/max": inflight,
    }
    return {"data": data | more}


def test_given_throughputs_with_cache_sizes_then_all_three_terms_are_found(tmp_path):
    rng = random.Random(1)
    rows = []
    for _ in range(50):
        inflight, kv_tok = rng.randint(1, 200), rng.randint(1000, 600_000)
        step_s = BASE_S + PER_REQUEST_S * inflight + 4e-8 * kv_tok
        rows.append({"inflight": inflight, "kv_tok": kv_tok, "tokens_per_s": inflight / step_s})
    fitted = calibrate(write(tmp_path / "t.jsonl", rows), num_servers=1)
    assert (fitted.base_s, fitted.per_request_s, fitted.per_kv_token_s) == pytest.approx((BASE_S, PER_REQUEST_S, 4e-8))


def test_given_one_concurrency_only_then_the_step_time_there_is_right(tmp_path):
    fitted = calibrate(write(tmp_path / "one.jsonl", [{"inflight": 8, "tokens_per_s": 1000}]), num_servers=1)
    assert fitted.base_s + 8 * fitted.per_request_s == pytest.approx(0.008)


def test_given_metrics_of_rollouts_with_more_and_fewer_requests_then_the_time_of_a_request_is_found(tmp_path):
    rng = random.Random(2)
    rows = []
    for _ in range(60):
        requests, tokens, inflight = rng.randint(50, 300), rng.randint(2000, 20_000), rng.uniform(20, 90)
        rollout_s = tokens * (BASE_S / inflight + PER_REQUEST_S) + requests * 0.008
        balancer = {"async_dapo/load_balancer/idle_ratio": 0.0, "async_dapo/load_balancer/requests": requests}
        rows.append(logged(rollout_s=rollout_s, trained=tokens, inflight=inflight, **balancer))
    fitted = calibrate(write(tmp_path / "log.jsonl", rows), num_servers=1)
    assert (fitted.base_s, fitted.per_request_s, fitted.admission_s) == pytest.approx((BASE_S, PER_REQUEST_S, 0.008))
    assert fitted.apply(small_scenario().step_cost()).prefill_s(1000) == pytest.approx(0.008), "a prefill is in it"


def test_given_a_metrics_log_then_speed_and_time_outside_of_rollouts_are_found(tmp_path):
    """A log as verl's file logger writes it, of a simulated run: calibrating on it gives that run's speed back.

    The log knows only means of a round, so prefills, which come in bursts, must not be most of the time.
    """
    scenario = small_scenario(constants=COSTS)
    measures = simulate(scenario, recipe("partial", rollout_strategy="partial"), steps=30)
    rows = []
    for step in measures:
        more = {
            "timing_s/step": step.step_s,
            "async_dapo/tokens/filtered": step.filtered_tok,
            "async_dapo/tokens/discarded": step.wasted_tok,
            "async_dapo/partial/buffer_tokens": step.buffered_tok,
            "async_dapo/load_balancer/idle_ratio": step.idle_ratio,
            "async_dapo/load_balancer/requests": step.prefilled_tok / scenario.prompt_len_tok,
        }
        rows.append(logged(rollout_s=step.rollout_s, trained=step.trained_tok, inflight=step.inflight_max, **more))
    measured = calibrate(write(tmp_path / "log.jsonl", rows), num_servers=scenario.num_servers)
    assert measured.outside_s == pytest.approx(sorted(step.step_s - step.rollout_s for step in measures)[15], rel=0.2)

    calibrated = small_scenario(constants=COSTS, measured=measured)
    for system in (verl_sync(groups=8), recipe("partial", rollout_strategy="partial")):
        assert mean_step(calibrated, system).step_s == pytest.approx(mean_step(scenario, system).step_s, rel=0.15)


def test_given_a_line_of_a_validation_alone_then_tokens_kept_over_it_are_not_generated_again(tmp_path):
    steps = [logged(rollout_s=10.0, trained=4000, inflight=40, **{"async_dapo/partial/buffer_tokens": 9000})] * 3
    resumed = [*steps[:2], {"data": {"val-core/math/acc/mean@1": 0.5}}, steps[2]]
    whole, with_validation = (
        calibrate(write(tmp_path / f"{name}.jsonl", rows), num_servers=2)
        for name, rows in (("whole", steps), ("resumed", resumed))
    )
    assert with_validation == whole


def test_given_a_record_with_step_times_then_what_is_outside_of_rollouts_is_what_was_measured(tmp_path):
    line = logged(rollout_s=2.3, trained=4000, inflight=40, **{"timing_s/step": 3.0})
    measured = calibrate(write(tmp_path / "log.jsonl", [line]), num_servers=2)
    step = simulate(small_scenario(measured=measured), recipe("any"), steps=1)[0]
    assert step.step_s - step.rollout_s == pytest.approx(0.7)


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
        calibrate(str(path), num_servers=1)


def test_given_cache_sizes_in_some_lines_only_then_the_record_is_refused(tmp_path):
    rows = [{"inflight": 8, "tokens_per_s": 1000, "kv_tok": 5000}, {"inflight": 4, "tokens_per_s": 600}]
    with pytest.raises(ConfigError, match=r"`kv_tok` is in 1 of 2 lines; give it in all or none"):
        calibrate(write(tmp_path / "part.jsonl", rows), num_servers=1)
