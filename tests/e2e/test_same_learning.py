"""Invariant 8: with `drain` and `discard` the recipe trains on the prompts that verl's sync mode would."""

import json
from pathlib import Path

import pytest

from ..support.harness import VERL, Run, train

STEPS = 3
UNFILTERED = ("algorithm.filter_groups.enable=False", "data.seed=1")


# On simulated engines `test_cluster.py` has the order of prompts for every change.
pytestmark = pytest.mark.nightly


def _prompts(run: Run) -> list[list[str]]:
    """Prompts of each step's trained trajectories, sorted."""
    files = [Path(run.folder, "rollouts", f"{step}.jsonl") for step in range(1, STEPS + 1)]
    return [sorted(json.loads(line)["input"] for line in file.read_text().splitlines()) for file in files]


def test_given_drain_and_discard_when_it_trains_then_it_trains_on_the_prompts_of_verls_sync_mode(assets, tmp_path):
    verl = train(
        assets,
        tmp_path / "verl",
        steps=STEPS,
        strategy=None,
        module=VERL,
        overrides=(
            *UNFILTERED,
            f"trainer.rollout_data_dir={tmp_path / 'verl' / 'rollouts'}",
            "algorithm.adv_estimator=grpo",
            "actor_rollout_ref.actor.clip_ratio_high=0.28",
        ),
    )
    ours = train(
        assets,
        tmp_path / "ours",
        steps=STEPS,
        stop_rule="drain",
        overrides=(
            *UNFILTERED,
            f"trainer.rollout_data_dir={tmp_path / 'ours' / 'rollouts'}",
            "async_dapo.over_sampling_batch_size=8",
        ),
    )
    assert _prompts(ours) == _prompts(verl)
    assert set(ours.metric("async_dapo/early_stop/interrupted_groups")) == {0.0}
