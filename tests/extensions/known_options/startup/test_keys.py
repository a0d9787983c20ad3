"""Keys that nobody reads are named, with what was meant; keys whose readers take anything pass."""

import re
from itertools import takewhile

import pytest
from omegaconf import DictConfig

from recipe.async_dapo.extensions.known_options import keys
from recipe.async_dapo.startup.preflight import findings

from ....support.composed_runs import compose_run, of_options

ROLLOUT = "actor_rollout_ref.rollout"
NOTHING = "nothing reads it"


def told(run, *options: str) -> list[str]:
    return [str(one.error(config)) for config in [run(*options)] for one in keys.unread_keys(config)]


# An override with `+` -> what is said of it.
UNREAD = f"""
trainer.save_freqq=2 -> {NOTHING}; did you mean trainer.save_freq?
trainer.v1.colocate_asyn.num_warmup_batches=2 -> {NOTHING}; did you mean trainer.v1.colocate_async.num_warmup_batches?
trainer.temperature=1 -> {NOTHING}; did you mean {ROLLOUT}.temperature?
{ROLLOUT}.val_kwarg.n=3 -> {NOTHING}; did you mean {ROLLOUT}.val_kwargs.n?
rollout.n=8 -> {NOTHING}; did you mean {ROLLOUT}.n?
actor_rollout_ref.actor.megatron.sequence_parallel=True -> {NOTHING} with model_engine=dp; it belongs to model_engine=
actor_rollout_ref.ref.policy_loss.loss_mode=gspo -> {NOTHING}; did you mean actor_rollout_ref.actor.policy_loss.loss_
actor_rollout_ref.actor.fsdp_config.use_dynamic_bsz=True -> {NOTHING}; did you mean actor_rollout_ref.actor.use_dynamic
actor_rollout_ref.model.lora.ranks=8 -> {NOTHING}; did you mean actor_rollout_ref.model.lora.rank?
ray_kwargs.ray_init.adress=auto -> {NOTHING}; did you mean ray_kwargs.ray_init.address?
totally.unknown=1 -> {NOTHING}; leave it out
""".strip().splitlines()


@pytest.mark.parametrize("line", UNREAD)
def test_a_key_that_nobody_reads_is_named_with_what_was_meant(run, line):
    option, said = line.split(" -> ")
    [error] = told(run, f"+{option}")
    assert error.startswith(f"{option}: {said}")


# As users write them: overrides -> how the message begins.
WRITTEN = """
+async_dapo.max_stalenes=3 -> : nothing reads it; did you mean async_dapo.max_staleness\\?
+async_dapo.reward.retries=2 -> : nothing reads it
++rollout.temprature=0.7 -> : nothing reads it; did you mean actor_rollout_ref.rollout.temperature\\?
""".strip().splitlines()


@pytest.mark.parametrize("line", WRITTEN)
def test_a_run_with_a_key_that_nobody_reads_is_refused(run, line):
    option, said = line.split(" -> ")
    errors = of_options(run(option))
    assert [error for error in errors if re.match(re.escape(option.lstrip("+")) + said, error)], errors


READ = f"""
{ROLLOUT}.engine_kwargs.vllm.async_scheduling=False
{ROLLOUT}.custom.mine=1
{ROLLOUT}.enable_sleep_mode=True
actor_rollout_ref.model.override_config.attn_implementation=sdpa
actor_rollout_ref.model.target_parameters=[a]
actor_rollout_ref.model.lora.use_rslora=True
actor_rollout_ref.actor.fsdp_config.mixed_precision={{param_dtype:fp32}}
actor_rollout_ref.actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap=[A]
actor_rollout_ref.actor.checkpoint.save_lora_only=True
actor_rollout_ref.actor.optim.override_optimizer_config.fused=True
critic.ppo_infer_max_token_len_per_gpu=32768
algorithm.gdpo_reward_keys=[a]
reward.custom_reward_function.reward_kwargs.judge_url=x
data.cache_dir=x
data.apply_chat_template_kwargs.enable_thinking=False
ray_kwargs.ray_init.num_gpus=2
ray_kwargs.ray_init._temp_dir=x
ray_kwargs.ray_init.runtime_env.env_vars.A=b
ray_kwargs.ray_init.runtime_env.nsight=default
trainer.rl_insight.url=x
transfer_queue.controller.polling_mode=True
""".strip().splitlines()


@pytest.mark.parametrize("option", READ)
def test_a_key_that_verls_yaml_does_not_have_passes_if_its_reader_takes_it(run, option):
    assert not told(run, f"+{option}")


@pytest.mark.parametrize("engine", keys.ENGINES)
def test_the_recipes_own_options_are_all_known_and_none_is_changed(engine):
    config = keys.default_config(engine)
    assert keys.engine_of(config) == engine and not keys.unread_keys(config)
    assert not list(keys.changed(config, "trainer"))


def test_code_of_the_users_may_have_options_of_its_own_but_no_misspelt_ones(run, tmp_path):
    own = tmp_path / "own.py"
    own.write_text("class Own:\n    def __init__(self, config):\n        config.get('shufle')\n")
    assert len(told(run, "+data.max_hops=3")) == 1
    assert not told(run, f"data.custom_cls.path={own}", "+data.max_hops=3", "+data.shufle=3", "+mine.depth=2")
    [error] = told(run, f"data.custom_cls.path={own}", "+data.prompt_keys=a", "+mine.depth=2")
    assert error == "data.prompt_keys=a: nothing reads it; did you mean data.prompt_key?"
    manager = ("reward.reward_manager.source=importlib", f"reward.reward_manager.module.path={own}")
    for option in ("+reward.judges=3", "+reward.reward_kwargs.judges=3"):
        assert not told(run, *manager, option) and told(run, manager[1], option)


@pytest.mark.parametrize(
    ("code", "option"),
    [
        (f"{ROLLOUT}.agent.agent_loop_config_path=loops.yaml", "data.max_hops=3"),
        ("trainer.checkpoint_callback_class=mine.Upload", "trainer.bucket=s3"),
        ("actor_rollout_ref.model.external_lib=json", "algorithm.my_gain=2"),  # any module; it registers an estimator
    ],
)
def test_code_of_the_users_may_have_options_in_the_node_that_verl_hands_it(run, code, option):
    assert told(run, f"+{option}") and not told(run, code, f"+{option}")
    config = run(code, f"+{option}")
    assert not [one for one in before_data(config) if one.error is not None and option.split("=")[0] in str(one.error)]


def test_nodes_of_a_tool_around_the_recipe_are_known():
    from recipe.async_dapo_lab.rehearsal.options import WITH_REHEARSAL

    keys.known_keys.cache_clear()
    assert not keys.unread_keys(compose_run([*WITH_REHEARSAL, "rehearsal.speedup=3"]))


def before_data(config: DictConfig):
    return takewhile(lambda found: found.name != "environment", findings(config))
