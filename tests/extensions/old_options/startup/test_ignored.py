"""Options that verl would silently ignore are refused, with the one to set."""

import pytest
from omegaconf import OmegaConf

from recipe.async_dapo.config.values import ConfigErrors
from recipe.async_dapo.extensions.old_options.ignored import IGNORED, SHADOWED, check_ignored

from ....support.composed_runs import of_options
from ....support.refusals import another_value

ROLLOUT, NOTHING = "actor_rollout_ref.rollout", "nothing reads it"


def test_every_option_that_would_be_ignored_is_refused(run):
    with pytest.raises(ConfigErrors) as found:
        check_ignored(run(*(f"++{key}={another_value(accepted)}" for key, accepted, _ in IGNORED)))
    said = {error.args[0]: str(error) for error in found.value.errors}
    assert not [key for key, _, instead in IGNORED if instead not in said.get(key, "")]


def test_an_option_that_another_one_shadows_must_agree_with_it(run):
    values = {key: bool(OmegaConf.select(run(), read)) for key, read in SHADOWED}
    errors = of_options(run(*(f"{key}={not value}" for key, value in values.items())))
    for key, read in SHADOWED:
        said = f"must be {values[key]} or null: another value would be ignored, verl reads {read}"
        assert f"{key}={not values[key]}: {said}" in errors


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("trainer.v1.colocate_async.num_warmup_batches=2", "set async_dapo.over_sampling_batch_size"),
        ("custom_reward_function.path=a.py", "set reward.custom_reward_function.path"),
        ("reward_model.reward_manager=naive", "set reward.reward_manager.name"),
        ("data.return_raw_chat=False", "agent loops get the messages"),
        ("distillation.distillation_loss.topk=3", "teacher log-probs are not computed inline"),
        ("skip.rollout.dump_dir=x", "answers are always generated"),
        (f"+{ROLLOUT}.engine_kwargs.sglang.attention_backend=triton", f"set {ROLLOUT}.engine_kwargs.vllm"),
        (f"{ROLLOUT}.trace.token2text=True", "the V1 trainer does not trace"),
    ],
)
def test_an_option_of_verls_that_nobody_reads_here_is_named_with_the_one_to_set(run, option, said):
    key, value = option.lstrip("+").split("=")
    assert [
        error for error in of_options(run(option)) if error.startswith(f"{key}={value}: {NOTHING}; ") and said in error
    ]
