"""The first tokens of the newest weights say whether engines and trainer agree, in a run's first step and after each
resume: what is judged, when, and what the message names.
"""

import pytest
import torch

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.extensions.agreement.verdict import ENOUGH_TOK, LogProbsDisagree, NewestTokens, judge

EXTENSIONS, FEW = ("agreement",), (3, 5)
MODES = ("none", "decoupled", "bypass", *(name for name in ["mixture"] if name in declared()))  # a copy may lack it
STALE_KV = ("async_dapo.rollout_strategy=partial_stale_kv", "async_dapo.host_kv_gib=1")


@pytest.fixture(autouse=True)
def warnings_alone(caplog):
    caplog.set_level("WARNING", logger="recipe.async_dapo")  # vLLM's import sets the root logger to ERROR


@pytest.mark.parametrize("mode", MODES)
def test_a_first_step_with_other_log_probs_than_the_engines_ends_the_run_whatever_corrects(step, mode):
    with pytest.raises(
        LogProbsDisagree, match=r"k3 is 0\.718 nats a token, at most 0\.1 trains; likely causes: .*rollout.dtype"
    ):
        step(1, (0, 0), (1.0, 1.0), f"async_dapo.importance_sampling={mode}")


@pytest.mark.parametrize("mode", MODES)
def test_a_first_step_that_is_a_little_off_warns_once_and_one_that_agrees_says_nothing(step, mode, caplog):
    of_mode = f"async_dapo.importance_sampling={mode}"
    step(1, (0, 0), (0.3, 0.3), of_mode)
    assert caplog.text.count("k3 is 0.0499 nats a token, up to 0.01 is healthy; possible causes: ") == 1
    later = step(2, (1, 1), (5.0, 5.0), of_mode)  # judged no more
    assert len(caplog.records) == 1 and later.calls == (0 if mode == "bypass" else 1)


def test_under_bypass_the_engines_log_probs_count_after_the_trainer_s_have_been_compared(step):
    actor = step(1, (0, 0), (0.01, 0.01), "async_dapo.importance_sampling=bypass")
    assert actor.calls == 1 and torch.equal(
        actor.fields["old_log_probs"].values(), actor.fields["rollout_log_probs"].values()
    )


@pytest.mark.skipif("one_pass" not in declared(), reason="extensions/one_pass is not in this copy")
def test_a_pass_that_a_copy_leaves_out_comes_all_the_same_until_engines_are_judged(step, monkeypatch, request):
    monkeypatch.setattr(request.module, "EXTENSIONS", ("agreement", "one_pass"))
    of_one = ("data.train_batch_size=1", "actor_rollout_ref.actor.ppo_mini_batch_size=1")
    of_one += ("actor_rollout_ref.rollout.n=2",)
    steps = [step(number, (number - 1,) * 2, (0.0, 0.0), *of_one, lens=(300, 500)) for number in (1, 2, 3)]
    assert [one.calls for one in steps] == [1, 1, 0]
    assert ["one_update" in one.told for one in steps] == [False, False, True]


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
    bypass = "async_dapo.importance_sampling=bypass"
    assert step(7, (5, 6), (0.0, 1.3), bypass, lens=(1000, 1)).calls == 1
    assert step(8, (7, 7), (0.01, 0.01), bypass).calls == 1
    assert not caplog.records
    assert step(9, (8, 8), (9.0, 9.0), bypass).calls == 0


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
