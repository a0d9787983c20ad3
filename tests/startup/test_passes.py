"""What extensions add to the passes of a step, all of them together."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from verl.workers.utils.losses import ppo_loss

from recipe.async_dapo.config.extensions import declared, load
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.training.passes import passes_of

EXTENSIONS: tuple[str, ...] = ("agreement", "mini_batches", "mixture", "one_pass")
WITHOUT_MIXTURE = ("agreement", "mini_batches", "one_pass")
ONE_GROUP = (
    "data.train_batch_size=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    "actor_rollout_ref.rollout.n=2",
)

pytestmark = pytest.mark.skipif(not {*EXTENSIONS} <= {*declared()}, reason="this copy lacks one of them")


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(
    ("mode", "updates", "later"),
    [
        ("none", 1, 0),
        ("decoupled", 1, 0),
        ("decoupled", 2, 1),
        ("mixture", 1, 1),
        ("bypass", 1, 0),
        ("bypass", 2, 0),
    ],
)
def test_the_first_step_has_a_pass_and_later_ones_where_the_update_does_not_compute_it(
    step, monkeypatch, request, mode, updates, later, backwards
):
    """`updates` are epochs, `later` the passes of the second step. In whatever order extensions are combined."""
    own = EXTENSIONS if mode == "mixture" else WITHOUT_MIXTURE
    monkeypatch.setattr(request.module, "EXTENSIONS", own[::-1] if backwards else own)
    of_mode = (f"async_dapo.importance_sampling={mode}", f"actor_rollout_ref.actor.ppo_epochs={updates}", *ONE_GROUP)
    first, second = (step(number, (0, number - 1), (0.0, 0.0), *of_mode) for number in (1, 2))
    assert (first.calls, second.calls) == (1, later)
    assert ["one_update" in actor.told for actor in (first, second)] == [False, updates == 1 and mode != "mixture"]
    if mode == "bypass":
        for actor in (first, second):
            assert torch.equal(actor.fields["old_log_probs"].values(), actor.fields["rollout_log_probs"].values())


@pytest.mark.parametrize("own", [WITHOUT_MIXTURE, WITHOUT_MIXTURE[::-1]])
@pytest.mark.parametrize("by_rows", [True, False])
def test_the_loss_has_what_each_extension_adds_in_whatever_order_they_are_combined(run, by_rows, own):
    mode = "seq-mean-token-mean" if by_rows else "token-mean"
    config = run(f"actor_rollout_ref.actor.loss_agg_mode={mode}", *ONE_GROUP)
    losses: list[Any] = []
    workers = SimpleNamespace(set_loss_fn=losses.append)
    passes_of(own)(config, AsyncDAPOConfig.from_hydra(config), workers)
    [loss] = losses
    added = set()
    while loss.func is not ppo_loss:
        added.add(loss.func)
        loss = loss.args[0]
    rows, one = load("mini_batches", "row_weights._loss"), load("one_pass", "one_update._loss")
    assert added == ({rows, one} if by_rows else {one})
