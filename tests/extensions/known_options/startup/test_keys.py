"""Keys that nobody reads are named, with what was meant; keys whose readers take anything pass."""

import random
import re
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.extensions.known_options import keys
from recipe.async_dapo.startup import overrides
from recipe.async_dapo.startup.overrides import CommandLine, compose_what_is_right
from recipe.async_dapo.startup.preflight import findings
from recipe.async_dapo_lab.overrides import compose_overrides

from ....support.composed_runs import compose_run, of_options
from ..support.misspelt_sets import misspelt_set

ROLLOUT = "actor_rollout_ref.rollout"
NOTHING = "nothing reads it"


def told(run, *options: str) -> list[str]:
    return [str(one.error(config)) for config in [run(*options)] for one in keys.unread_keys(config)]


# An override with `+` -> what is said of it.
UNREAD = f"""
data.sampler.class_path=x -> {NOTHING} any more; verl's V1 trainer makes its own sampler: set data.shuffle and
trainer.save_freqq=2 -> {NOTHING}; did you mean trainer.save_freq?
trainer.v1.colocate_asyn.num_warmup_batches=2 -> {NOTHING}; did you mean trainer.v1.colocate_async.num_warmup_batches?
trainer.temperature=1 -> {NOTHING}; did you mean {ROLLOUT}.temperature?
{ROLLOUT}.val_kwarg.n=3 -> {NOTHING}; did you mean {ROLLOUT}.val_kwargs.n?
rollout.n=8 -> {NOTHING}; did you mean {ROLLOUT}.n?
rollout.nnodes=1 -> {NOTHING} any more; set {ROLLOUT}.nnodes
async_training.staleness_threshold=0.1 -> {NOTHING} any more; set async_dapo.max_staleness [versions] or
reward_model.overlong_buffer.enable=True -> {NOTHING} any more; set reward.reward_kwargs.overlong_buffer_cfg.enable
critic.model.fsdp_config.param_offload=True -> {NOTHING} any more; set critic.fsdp.param_offload
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
custom_reward_function.path=a.py -> : nothing reads it; set reward.custom_reward_function.path
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


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.train_files=~/x", "=~/x: write $HOME in place of ~, or quote it twice: 'data.train_files=\"~/x\"'"),
        ("actor_rollout_ref.model.path=<MODEL>/x", "=<MODEL>/x: put a value of yours in place of <MODEL>"),
        ("trainer.save_freq = 3", "= 3: leave out the blanks around ="),
        ("trainer.project_name=a;b", "=a;b: Hydra cannot read the value (token recognition error at: ';'); quote it"),
        ("trainer.save_freq=1,2", "=1,2: a run has one value; write a list as [a,b], and a text with a comma as"),
        ("trainer.save_freq=[1", "=[1: Hydra cannot read the value (no viable"),
        ("+trainer.save_freq=3", "=3: the option exists; leave out the +"),
        ("~trainer.savefreq", "=<none>: nothing reads it; did you mean trainer.save_freq?"),
        ("actor_rollout_ref.rollout.mtp.enable=True", "=True: follows actor_rollout_ref.model.mtp; set that"),
        (
            "actor_rollout_ref.model.override_config.attn_implementation=sdpa",
            "=sdpa: verl reads it, but its yaml does not have it; write +actor_rollout_ref.model.override_config.attn_",
        ),
        ("trainer.logger.x=1", "=1: Hydra says: invalid literal"),
    ],
)  # fmt: skip
def test_what_hydra_cannot_read_or_apply_has_a_remedy_of_ours(override, said):
    config, errors = compose_what_is_right(CommandLine.of(["trainer.nnodes=3", override, "async_dapo.max_staleness=2"]))
    key = override.lstrip("+~").partition("=")[0].strip()
    [error] = errors
    assert str(error).startswith(f"{key}{said}")
    assert (config.trainer.nnodes, config.async_dapo.max_staleness) == (3, 2)


def before_data(config: DictConfig):
    return takewhile(lambda found: found.name != "environment", findings(config))


def before_verls_own(config: DictConfig):
    """Checks of the recipe's tables; another test asks for all."""
    return takewhile(lambda found: found.name != "verl's own checks", findings(config))


@pytest.fixture(scope="module")
def cached_yaml():
    """verl's yaml is read once: that takes half a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overrides, "composed", lambda line, texts: compose_run(texts))
        yield


@given(st.integers(0, 2**32))
@settings(max_examples=15)
def test_a_misspelt_key_is_named_whatever_stands_beside_it(cached_yaml, seed):
    drawn = misspelt_set(random.Random(seed))
    config, errors = compose_what_is_right(CommandLine(overrides=tuple(drawn.overrides)))
    assert isinstance(config, DictConfig)
    said = [*errors, *(one.error for one in before_verls_own(config) if one.error is not None)]
    assert any(map(drawn.is_named, said)), said
    assert not any("<not checked>" in str(error) for error in said), said


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rollout.n=8", "^rollout.n=8: nothing reads it; did you mean actor_rollout_ref.rollout.n\\?$"),
        ("model_engine=fsdp", "^model_engine=fsdp: .*Could not find 'model_engine/fsdp' Available options .*: dp"),
        ("data.train_batch_size", "^data.train_batch_size=<missing>: give it a value: KEY=VALUE$"),
    ],
)
def test_what_hydra_refuses_is_told_with_a_remedy(override, said):
    with pytest.raises(ConfigError, match=said):
        compose_overrides(["data.train_batch_size=8", override])
