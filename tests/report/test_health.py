"""Rules that say whether asynchrony helps, and how often the log says so."""

import math
import re

import pytest

from recipe.async_dapo.record import keys
from recipe.async_dapo_lab.report.health import EVERY_STEPS, RULES, VALIDATION_SHARE, Hints, hints

from ..support.recorded_runs import recipe_step


def test_a_healthy_step_gives_no_hint_and_has_every_metric_of_the_rules() -> None:
    step = recipe_step(1)
    assert {rule.key for rule in RULES} - {VALIDATION_SHARE} <= step.keys() and len(RULES) == 12
    assert hints(step) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.key)
def test_each_end_of_each_range_counts_as_healthy_and_what_is_beyond_it_does_not(rule) -> None:
    for end, advice, sign in ((rule.low, rule.below, -1), (rule.high, rule.above, 1)):
        assert (end is None) == (advice == "")
        if end is not None:
            assert rule.hint(end) is None
            assert advice in rule.hint(end + sign * 0.01)
    assert all("is no finite number" in rule.hint(value) for value in (math.nan, math.inf, -math.inf))


def test_the_log_has_one_hint_in_ten_steps_the_most_urgent_one() -> None:
    log = Hints()
    bad = recipe_step(1) | {keys.IDLE_RATIO: 0.9, keys.K3_KL: 0.1}
    said = [log.of_step(step, bad) for step in range(1, 3 * EVERY_STEPS + 1)]
    told = [hint for hint in said if hint is not None]
    assert len(told) == 3 and all("old tokens differ too much" in hint for hint in told)
    assert said[EVERY_STEPS - 1] is not None


def test_no_hint_raises_an_option_that_another_one_lowers() -> None:
    turned: dict[str, set[str]] = {"raise": set(), "lower": set()}
    for advice in (text for rule in RULES for text in (rule.below, rule.above)):
        for verb, options in re.findall(r"(raise|lower) ((?:[a-z_]+\.[a-z_.]+(?: or )?)+)", advice):
            turned[verb] |= set(options.split(" or "))
    assert turned["raise"] and turned["lower"] and not turned["raise"] & turned["lower"]
