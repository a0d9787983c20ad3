"""The first tokens of the newest weights say whether engines and trainer agree, in a run's first step and after each
resume: what is judged, when, and what the message names.
"""

from typing import Any, ClassVar

import pytest
import torch
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_base

from recipe.async_dapo import store
from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.core.agreement import ENOUGH_TOK, LogProbsDisagree, NewestTokens, judge
from recipe.async_dapo.training import one_update
from recipe.async_dapo.training.importance_sampling import wire_importance_sampling
from recipe.async_dapo.training.passes import Passes
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

from ..support.ranks import nested

PROMPT_LEN, LENS, SAMPLED = 2, (600, 1000), -2.0
FEW = (3, 5)


class Actor:
    """A batch of two trajectories in the data plane, and the workers that score it."""

    _dispatch_info: ClassVar = {"actor": [0]}  # one rank

    def __init__(self, versions: tuple[int, int], off: tuple[float, float], lens: tuple[int, int]) -> None:
        self.off, self.lens, self.calls = off, lens, 0
        self.fields: dict[str, Any] = {
            "responses": nested([torch.ones(length) for length in lens]),
            "response_mask": nested([torch.ones(length, dtype=torch.int64) for length in lens]),
            "rollout_log_probs": nested([torch.full((length,), SAMPLED) for length in lens]),
            "policy_versions": nested(
                [torch.full((length,), of, dtype=torch.int32) for length, of in zip(lens, versions, strict=True)]
            ),
        }
        tags = [{"min_global_steps": 0}, {"min_global_steps": versions[1]}]
        self.batch = KVBatchMeta(partition_id="train", keys=["a_0_0", "a_1_0"], tags=tags)

    def compute_log_prob(self, batch: KVBatchMeta) -> KVBatchMeta:
        self.calls += 1
        rows = [
            torch.full((PROMPT_LEN + length,), SAMPLED + off) for length, off in zip(self.lens, self.off, strict=True)
        ]
        self.fields |= {"log_probs": nested(rows), "entropy": nested(rows)}
        return batch

    def set_loss_fn(self, loss: Any) -> None:
        self.loss = loss

    def update_actor(self, batch: KVBatchMeta) -> dict[str, Any]:
        self.told = batch.extra_info.get(one_update.FIELD)
        return {"metrics": {"mfu": 0.0}}

    def kv_batch_get(self, *, select_fields: list[str], **_: Any) -> TensorDict:
        return TensorDict({name: self.fields[name] for name in select_fields}, batch_size=2)

    def kv_batch_put(self, *, fields: TensorDict, **_: Any) -> KVBatchMeta:
        self.fields |= dict(fields.items())
        return self.batch


@pytest.fixture
def step(run, monkeypatch, caplog):
    """Lets a trainer score a batch in a step, and update: of which versions, how far from the engines [nats]."""
    caplog.set_level("WARNING", logger="recipe.async_dapo")  # vLLM's import sets the root logger to ERROR
    trainer: Any = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
    trainer.use_critic = False

    def score(
        number: int, versions: tuple[int, int], off: tuple[float, float], *overrides: str, lens: tuple[int, int] = LENS
    ) -> Actor:
        trainer.config, trainer.global_steps = (
            run("actor_rollout_ref.rollout.calculate_log_probs=True", *overrides),
            number,
        )
        trainer.options = AsyncDAPOConfig.from_hydra(trainer.config)
        wire_importance_sampling(trainer.config, trainer.options.importance_sampling)
        trainer.actor_rollout_wg = actor = Actor(versions, off, lens)
        passes, earlier = Passes(trainer.config, trainer.options, actor), getattr(trainer, "_passes", None)
        if earlier is not None:  # of the same life
            passes._newest, passes._has_judged_engines = earlier._newest, earlier._has_judged_engines
        trainer._passes = passes
        monkeypatch.setattr(trainer_base, "tq", actor)
        monkeypatch.setattr(store, "tq", actor)
        trainer._compute_old_log_prob(actor.batch, {})
        trainer._update_actor(actor.batch, {})
        return actor

    return score


EXTENSIONS = ["mixture"]  # which a copy may lack
MODES = ("none", "decoupled", "bypass", *(name for name in EXTENSIONS if name in declared()))
STALE_KV = ("async_dapo.rollout_strategy=partial_stale_kv", "async_dapo.host_kv_gib=1")


@pytest.mark.parametrize("mode", MODES)
def test_a_first_step_with_other_log_probs_than_the_engines_ends_the_run_whatever_corrects(step, mode):
    with pytest.raises(
        LogProbsDisagree, match=r"k3 is 0\.718 nats a token, at most 0\.1 trains; likely causes: .*rollout.dtype"
    ):
        step(1, (0, 0), (1.0, 1.0), f"async_dapo.importance_sampling={mode}")


@pytest.mark.parametrize("mode", MODES)
def test_a_first_step_that_is_a_little_off_warns_once_and_one_that_agrees_says_nothing(step, mode, caplog):
    """Of several updates: a step with one needs no pass once the engines have been judged."""
    of_two = f"async_dapo.importance_sampling={mode}", "actor_rollout_ref.actor.ppo_epochs=2"
    step(1, (0, 0), (0.3, 0.3), *of_two)
    assert caplog.text.count("k3 is 0.0499 nats a token, up to 0.01 is healthy; possible causes: ") == 1
    later = step(2, (1, 1), (5.0, 5.0), *of_two)  # judged no more
    assert len(caplog.records) == 1 and later.calls == (0 if mode == "bypass" else 1)


def test_under_bypass_the_engines_log_probs_count_after_the_trainer_s_have_been_compared(step):
    actor = step(1, (0, 0), (0.01, 0.01), "async_dapo.importance_sampling=bypass")
    assert actor.calls == 1 and torch.equal(
        actor.fields["old_log_probs"].values(), actor.fields["rollout_log_probs"].values()
    )


@pytest.mark.parametrize("updates", [1, 2])  # epochs
def test_under_bypass_the_update_of_a_step_with_one_measures_how_far_old_tokens_are(step, updates):
    mode = ("async_dapo.importance_sampling=bypass", f"actor_rollout_ref.actor.ppo_epochs={updates}")
    mode += tuple(f"{key}=1" for key in ("data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"))
    mode += ("actor_rollout_ref.rollout.n=2",)
    assert step(1, (0, 0), (0.01, 0.01), *mode).told is None  # a pass has measured
    actor = step(2, (0, 1), (5.0, 5.0), *mode)
    assert torch.equal(actor.fields["old_log_probs"].values(), actor.fields["rollout_log_probs"].values())
    told = one_update.OneUpdate(bypasses=True, weighs=False, threshold=2.0, newest=1)
    assert actor.calls == 0 and actor.told == (told if updates == 1 else None)


def test_after_a_resume_old_tokens_do_not_count_and_the_first_step_with_new_ones_is_judged(step, caplog):
    step(7, (5, 5), (9.0, 9.0))
    step(8, (5, 7), (9.0, 0.01))
    assert not caplog.records
    step(9, (8, 8), (9.0, 9.0))


def test_a_resumed_trajectory_that_is_computed_otherwise_does_not_count_with_its_newest_tokens_either(step):
    step(8, (7, 5), (9.0, 9.0), *STALE_KV)
    with pytest.raises(LogProbsDisagree, match="to the 1000 tokens"):
        step(9, (8, 8), (0.0, 9.0), *STALE_KV)


def test_log_probs_that_are_no_numbers_end_the_run(step):
    with pytest.raises(LogProbsDisagree, match="k3 is inf"):
        step(1, (0, 0), (float("nan"), float("nan")), lens=FEW)


def test_log_probs_of_which_most_are_no_numbers_end_the_run_whatever_the_others_are(step):
    with pytest.raises(LogProbsDisagree, match=r"sampled \(5 without a finite one\): k3 is inf"):
        step(1, (0, 0), (float("nan"), 0.0), lens=(5, 1000))


def test_few_tokens_that_are_off_by_accident_end_no_run_and_those_of_later_steps_are_added(step, caplog):
    step(7, (5, 6), (0.0, 1.3), lens=(1000, 1))
    step(8, (7, 7), (0.01, 0.01))
    assert not caplog.records
    assert step(9, (8, 8), (9.0, 9.0), "async_dapo.importance_sampling=bypass").calls == 0


@pytest.mark.parametrize(("off", "last", "seen"), [(9.0, 1, 8), (2.0, 3, 24)])
def test_a_wrong_run_of_few_tokens_a_step_ends_when_the_mean_of_enough_is_sure_to_be_wrong(step, off, last, seen):
    for number in range(1, last):
        step(number, (number - 1, number - 1), (off, off), lens=FEW)
    with pytest.raises(LogProbsDisagree, match=f"to the {seen} tokens"):
        step(last, (last - 1, last - 1), (off, off), lens=FEW)


def test_a_run_of_few_tokens_a_step_that_is_a_little_off_warns_once(step, caplog):
    for number in (1, 2, 3):
        step(number, (number - 1, number - 1), (0.3, 0.3), lens=(300, 500))
    assert caplog.text.count("to the 1600 tokens that the newest weights have sampled: k3 is 0.0499 nats") == 1


def test_agreement_says_nothing():
    assert judge(NewestTokens(ENOUGH_TOK, 9.0)) == ""
    assert judge(NewestTokens(ENOUGH_TOK, 9.0, not_finite=1)) == "", "one in a thousand is an accident"


def test_a_sum_that_is_no_number_ends_the_run():
    with pytest.raises(LogProbsDisagree):
        judge(NewestTokens(ENOUGH_TOK, float("nan")))
