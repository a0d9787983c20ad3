"""Values that verl or torch look up late are looked up before Ray starts."""

from importlib.util import find_spec

import pytest
from verl.experimental.reward_loop.reward_manager import registry
from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager

from recipe.async_dapo.extensions.known_values import choices
from recipe.async_dapo.extensions.known_values.choices import CHOICES

from ....support.composed_runs import of_options, refusal
from ....support.refusals import AFTER_RULES, assert_line, in_full

ALL_ACT = (
    "gae saves ref algorithm.use_kl_in_reward=True model.use_fused_kernels=True actor.fsdp_config.qat.enable=True "
    "ref.fsdp_config.qat.enable=True critic.fsdp.qat.enable=True"
)


@pytest.mark.parametrize(
    ("key", "known"), [(key, known) for key, _, known in CHOICES], ids=[key for key, *_ in CHOICES]
)
def test_a_misspelt_choice_is_answered_with_what_was_meant(run, key, known):
    meant, acts = sorted(known())[-1], in_full(ALL_ACT)
    errors = of_options(run(*acts, f"++{key}={meant}x"), before=AFTER_RULES)
    said = [error for error in errors if error.startswith(f"{key}={meant}x: must be one of ")]
    assert [error for error in said if error.endswith(f"; did you mean {meant}?")], errors


# Of what is in no table: overrides -> how the message begins, with the first override where it begins with a colon.
OTHERS = """
correction.rollout_is_threshold=0 -> : verl says: rollout_is_threshold upper bound must be positive, got 0.0; set a
correction.rollout_rs=token_k1 correction.rollout_rs_threshold=0.5 -> algorithm.* verl says: .* lower <= upper, got 0.5
correction.rollout_rs=token_k3 -> algorithm.rollout_correction.rollout_rs_threshold=None: verl says: .* must be provided
actor.loss_agg_mode=mean -> verl=validate_config: verl refuses these options: .*Invalid loss_agg_mode: mean
actor.ppo_micro_batch_size_per_gpu=null -> verl=validate_config: verl refuses .*Please set at least one of
megatron actor.megatron.tensor_model_parallel_size=3 -> verl=validate_config: .*n_gpus \\(2\\) must be divisible by
actor.optim.optimizer=Adam_W -> : must be one of .*; did you mean AdamW\\?
actor.optim.optimizer_impl=torch.optimm -> : cannot be imported: No module named 'torch.optimm'; install its
actor.optim.optimizer_impl=bitsandbytes.optim -> : cannot be imported: No module named 'bitsandbytes'; install its
actor.optim.betas=[0.9] -> .*optim.betas=\\[0.9\\]: torch.optim.AdamW says: IndexError
actor.optim.betas=[0.9,1.5] -> .*optim.betas=\\[0.9, 1.5\\]: torch.optim.AdamW says: ValueError\\('Invalid beta
actor.optim.override_optimizer_config={epss:1} -> .*override_optimizer_config=.* says: TypeError.*'epss'
actor.optim.optimizer=Muon -> : torch.optim.Muon says: ValueError
gae critic.optim.optimizer=Adm -> critic.optim.optimizer=Adm: must be one of .*; did you mean Adam\\?
gae critic.loss_agg_mode=token_mean -> critic.loss_agg_mode=token_mean: verl says: Invalid loss_agg_mode
ref ref.profiler.tool_config.npu.level=high -> actor_rollout_ref.ref=.*verl says: .*Profiler level only supports
async_dapo.max_staleness=null algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type=linear -> .*NotImplementedError
reward.reward_manager.name=mine -> : verl says: Unknown reward manager: mine; set one of verl's, such as dapo, or name
""".strip().splitlines()


@pytest.mark.parametrize("line", OTHERS)
def test_what_is_in_no_table_is_refused_too(run, line):
    assert_line(run, line)


def test_a_manager_that_is_registered_wherever_verl_is_imported_may_read_the_overlong_options(run, monkeypatch):
    """As a module of `VERL_USE_EXTERNAL_MODULES` does it. verl's own but dapo leave these options out."""
    monkeypatch.setattr(registry, "REWARD_MANAGER", {**registry.REWARD_MANAGER})
    registry.register("mine")(type("Mine", (DAPORewardManager,), {}))
    assert not of_options(
        run(*in_full("overlong reward.reward_kwargs.max_resp_len=32 reward.reward_manager.name=mine"))
    )


def test_a_loggers_package_that_is_missing_is_named_also_of_its_older_name(run, monkeypatch):
    monkeypatch.setattr(choices, "find_spec", lambda name: None if name == "wandb" else find_spec(name))
    assert not of_options(run("trainer.logger=console"), before=AFTER_RULES)
    for logger in ("tracking", "wandb"):
        needs = f"trainer.logger={logger}: needs wandb, which is not installed; install or drop it"
        assert of_options(run(f"trainer.logger={logger}"), before=AFTER_RULES) == [needs]


def test_given_a_reward_manager_that_verl_does_not_have_when_checked_then_it_is_told_in_its_words(run):
    said = "reward.reward_manager.name=dapoo: verl says: Unknown reward manager: dapoo; set one of verl's"
    assert refusal(run, "reward.reward_manager.name=dapoo").startswith(said)
