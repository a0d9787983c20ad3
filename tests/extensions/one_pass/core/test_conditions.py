"""Where a step needs a pass of log-probs before its update."""

from typing import Any

import pytest

from recipe.async_dapo.extensions.one_pass.conditions import why_two_passes

EXACT: dict[str, Any] = {"correction": "decoupled", "updates": 1, "threshold": 2.0}
OF_EVERY_UPDATE = {
    "updates": (4, "4 updates"),
    "kl_in_reward": (True, "use_kl_in_reward"),
    "has_dropout": (True, "drop"),
}
OF_WEIGHTS = {
    "weights": ("sequence", "rollout_is=sequence"),
    "threshold": ("0.5_2.0", "rollout_is_threshold=0.5_2.0"),
    "normalizes": (True, "rollout_is_batch_normalize=True"),
    "rejects": ("token_k1", "rollout_rs=token_k1"),
}


@pytest.mark.parametrize("name", [*OF_EVERY_UPDATE, *OF_WEIGHTS])
def test_each_condition_alone_asks_for_the_pass_and_says_why(name: str) -> None:
    value, reason = (OF_EVERY_UPDATE | OF_WEIGHTS)[name]
    assert why_two_passes(**EXACT) is None
    why = why_two_passes(**EXACT | {name: value})
    assert why is not None and reason in why


def test_a_correction_decides_first() -> None:
    """Under `none` nothing is weighted, under `bypass` nothing is computed, under `mixture` everything first."""
    every = {name: value for name, (value, _) in (OF_EVERY_UPDATE | OF_WEIGHTS).items()}
    weights = {name: every[name] for name in ("weights", "threshold", "normalizes")}
    assert why_two_passes(**EXACT | {"correction": "none"} | weights) is None
    assert why_two_passes(**EXACT | {"correction": "none", "updates": 2}) is not None
    assert why_two_passes(**EXACT | every | {"correction": "bypass"}) is None
    assert "mixture" in str(why_two_passes(**EXACT | {"correction": "mixture"}))


@pytest.mark.parametrize(("weights", "threshold"), [(None, "2.0"), ("token", None), ("token", "1e1")])
def test_numbers_in_every_spelling_are_no_band(weights: str | None, threshold: object) -> None:
    assert why_two_passes(**EXACT | {"weights": weights, "threshold": threshold}) is None
