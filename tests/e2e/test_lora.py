"""An adapter trains on the real stack: engines get it with every version, and a checkpoint has it."""

import pytest

from recipe.async_dapo.record.keys import FRESH_K3_KL, K3_KL

from ..support.harness import Run, ledger_closes, train

pytestmark = pytest.mark.nightly

STEPS, SAVED_STEP = 5, 3
K3_NATS = 1e-9  # float32


@pytest.fixture(scope="module")
def run(assets, tmp_path_factory) -> Run:
    overrides = (
        "actor_rollout_ref.model.lora_rank=8",
        "async_dapo.max_tokens_per_round=24",  # so that many trajectories are interrupted
        f"async_dapo.max_staleness={STEPS}",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        f"trainer.save_freq={SAVED_STEP}",
        "trainer.resume_mode=auto",
    )
    folder = tmp_path_factory.mktemp("lora")
    train(assets, folder, steps=STEPS, strategy="partial", overrides=overrides, kill_at=SAVED_STEP + 1)
    return train(assets, folder, steps=STEPS, strategy="partial", overrides=overrides)


def test_given_an_adapter_when_it_trains_then_engines_sample_from_it_also_after_a_resume(run):
    assert [record["step"] for record in run.inspections][-1] == STEPS and all(map(ledger_closes, run.steps))
    k3s = [step[FRESH_K3_KL] for step in run.steps if FRESH_K3_KL in step]  # a step may train on older tokens alone
    assert k3s and max(map(abs, k3s)) < K3_NATS, k3s
    assert max(run.metric("async_dapo/partial/resumed_groups")) > 0
    assert max(run.metric(K3_KL)) > 100 * K3_NATS, "the adapter has not changed"
