"""Rules that say whether asynchrony helps, and how often the log says so."""

import pytest

from recipe.async_dapo.core.staleness import HEALTHY_MEAN_STALENESS
from recipe.async_dapo.report import keys
from recipe.async_dapo.report.health import EVERY_STEPS, RULES, Hints, hints

from ..support.recorded_runs import recipe_step


def test_a_healthy_step_gives_no_hint_and_has_every_metric_of_the_rules() -> None:
    step = recipe_step(1)
    assert {rule.key for rule in RULES} <= step.keys() and len(RULES) == 7
    assert hints(step) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.key)
def test_each_end_of_each_range_counts_as_healthy_and_what_is_beyond_it_does_not(rule) -> None:
    for end, advice, sign in ((rule.low, rule.below, -1), (rule.high, rule.above, 1)):
        assert (end is None) == (advice == "")
        if end is not None:
            assert rule.hint(end) is None
            assert advice in rule.hint(end + sign * 0.01)


def test_the_log_has_one_hint_in_ten_steps_the_most_urgent_one() -> None:
    log = Hints()
    bad = recipe_step(1) | {keys.IDLE_RATIO: 0.9, keys.LENGTH_RATIO: 0.8}
    said = [log.of_step(bad) for _ in range(3 * EVERY_STEPS)]
    told = [hint for hint in said if hint is not None]
    assert len(told) == 3 and all("prefers short answers" in hint for hint in told)
    assert said[EVERY_STEPS - 1] is not None


def test_a_single_bad_step_is_no_trend() -> None:
    log = Hints()
    steps = [recipe_step(1) | {keys.IDLE_RATIO: 0.9}] + [recipe_step(1)] * (EVERY_STEPS - 1)
    assert [log.of_step(step) for step in steps] == [None] * EVERY_STEPS


def test_most_tokens_one_version_behind_are_healthy_and_tokens_two_behind_are_not() -> None:
    step = recipe_step(1) | {keys.OFF_POLICY: 0.95, keys.STALENESS_MEAN: HEALTHY_MEAN_STALENESS}
    assert not hints(step)
    [hint] = hints(step | {keys.STALENESS_MEAN: 2.0})
    assert "async_dapo/staleness/mean is 2 (healthy: up to 1)" in hint
