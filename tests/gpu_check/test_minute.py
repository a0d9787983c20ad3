"""What the first minute says of what it has measured: a good engine passes, and each fault fails in its own stage."""

from typing import Any

import pytest

from recipe.async_dapo_lab.gpu_check.minute import judge_life, judge_pressure
from recipe.async_dapo_lab.gpu_check.verdicts import Status

ANSWERS = [[[5, 6], [-0.5, -0.25]]] * 4
GOOD: dict[str, Any] = {
    "start_s": 20.0,
    "second_runner": True,
    "async_scheduling": True,
    "kv_blocks": 4000,
    "before": ANSWERS,
    "free_asleep_gb": 78.0,
    "total_gb": 80.0,
    "after": ANSWERS,
    "scaled": [[[5, 7], [-0.5, -0.3]]] * 4,
    "restored": ANSWERS,
    "abort_s": 0.02,
    "aborted_tok": 900,
    "log_probs_whole": True,
}
PRESSED = {"preemptions": 25, "most_in_a_step": 3, "tokens_per_s": 900.0}


def failures(facts: dict[str, Any], device: str = "cuda", ended: str = "") -> list[str]:
    return [name for name, verdict in judge_life(facts, ended, device=device) if verdict.is_failure]


@pytest.mark.parametrize(
    ("change", "stage"),
    [
        ({}, None),
        ({"free_asleep_gb": 60.0}, "memory asleep"),
        ({"after": [[[5, 9], [-0.5, -0.25]]] * 4}, "same after sleep"),
        ({"after": [*ANSWERS[:3], [[5, 6], [-0.5, float("nan")]]]}, "same after sleep"),
        ({"scaled": ANSWERS}, "new weights are seen"),
        ({"restored": [[[5, 6], [-0.5, -0.26]]] * 4}, "new weights are seen"),
        ({"log_probs_whole": False}, "abort of 64 requests"),
        ({"abort_s": 3.0}, "abort of 64 requests"),
    ],
)
def test_each_fault_of_an_engine_fails_in_its_own_stage(change, stage) -> None:
    assert failures(GOOD | change) == ([stage] if stage else [])


def test_the_first_stage_without_a_result_fails_with_how_it_ended_and_those_after_it_are_skipped() -> None:
    told = {name: GOOD[name] for name in ("start_s", "second_runner", "async_scheduling", "kv_blocks")}
    verdicts = dict(judge_life(told, "RuntimeError: CUDA error", device="cpu"))
    assert verdicts["same after sleep"].found == "RuntimeError: CUDA error"
    assert [verdict.status for verdict in verdicts.values()] == [
        Status.PASS, Status.SKIP, Status.FAIL, Status.SKIP, Status.SKIP,
    ]  # fmt: skip


def test_a_full_cache_that_preempts_most_requests_at_once_fails_and_one_that_the_recipe_never_starts_is_told() -> None:
    late = PRESSED | {"preemptions": 198, "most_in_a_step": 18}
    verdicts = dict(judge_pressure({"plain": PRESSED, "host_kv": late, "host_kv_async": late}, ""))
    assert [verdict.is_failure for verdict in verdicts.values()] == [False, True, False]
    assert "198 preemptions" in verdicts["the same, asynchronous"].found
