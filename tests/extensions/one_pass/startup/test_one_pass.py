"""Which steps have a pass of log-probs before their update, and what the update is told."""

import pytest
import torch

from recipe.async_dapo.extensions.one_pass import one_update

EXTENSIONS = ("one_pass",)
ONE_GROUP = (
    "data.train_batch_size=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    "actor_rollout_ref.rollout.n=2",
)


def of(updates: int, mode: str) -> tuple[str, ...]:
    return (f"async_dapo.importance_sampling={mode}", f"actor_rollout_ref.actor.ppo_epochs={updates}", *ONE_GROUP)


@pytest.mark.parametrize("updates", [1, 2])  # epochs
def test_under_bypass_the_update_of_a_step_with_one_measures_how_far_old_tokens_are(step, updates):
    actor = step(2, (0, 1), (5.0, 5.0), *of(updates, "bypass"))
    assert torch.equal(actor.fields["old_log_probs"].values(), actor.fields["rollout_log_probs"].values())
    told = one_update.OneUpdate(bypasses=True, weighs=False, threshold=2.0, newest=1)
    assert actor.calls == 0 and actor.told.get(one_update.FIELD) == (told if updates == 1 else None)


@pytest.mark.parametrize("updates", [1, 2])
def test_a_step_of_one_update_has_no_pass_and_its_update_is_told_what_the_pass_would_have_said(step, updates):
    actor = step(2, (0, 1), (0.0, 0.0), *of(updates, "decoupled"))
    assert (actor.calls, "old_log_probs" in actor.fields) == ((0, False) if updates == 1 else (1, True))
    told = one_update.OneUpdate(bypasses=False, weighs=True, threshold=2.0, newest=1)
    assert actor.told.get(one_update.FIELD) == (told if updates == 1 else None)
