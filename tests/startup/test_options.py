"""Bad options are refused before Ray starts, with a message that names key, value and remedy."""

import pickle

import pytest
import torch
from omegaconf import OmegaConf

from recipe.async_dapo.config import AsyncDAPOConfig, ConfigError
from recipe.async_dapo.startup import engine_check
from recipe.async_dapo.startup.preflight import check_all
from recipe.async_dapo.startup.verl_options import FIXED, IGNORED, SHADOWED

from ..support.composed_runs import ComposeRun, compose_run, refusal, valid_overrides

# (override, what the message must contain)
BAD_OPTIONS = [
    ("actor_rollout_ref.rollout.temperature=0", "actor_rollout_ref.rollout.temperature=0: must be > 0"),
    ("actor_rollout_ref.rollout.top_p=0.7", "actor_rollout_ref.rollout.top_p=0.7: the engine would sample from a part"),
    ("actor_rollout_ref.rollout.top_k=20", "actor_rollout_ref.rollout.top_k=20: the engine would sample from a part"),
    (
        "algorithm.use_kl_in_reward=True",
        "algorithm.use_kl_in_reward=True: tokens older than async_dapo.max_stale",
    ),
    (
        "algorithm.rollout_correction.rollout_is_threshold=null",
        "algorithm.rollout_correction.rollout_is_threshold=None: verl would leave the weights out",
    ),
    ("async_dapo.max_concurrent_prompts=0", "async_dapo.max_concurrent_prompts=0: must be >= 1"),
    ("async_dapo.max_loads_per_server=-1", "async_dapo.max_loads_per_server=-1: must be >= 1"),
    ("async_dapo.over_sampling_batch_size=0", "async_dapo.over_sampling_batch_size=0: must be >= 1"),
    (
        "async_dapo.over_sampling_batch_size=null",
        "async_dapo.over_sampling_batch_size=None: must be a whole number, or auto",
    ),
    ("async_dapo.rollout_pool_size=much", "async_dapo.rollout_pool_size=much: must be a whole number, or auto"),
    ("async_dapo.max_concurrent_prompts=many", "async_dapo.max_concurrent_prompts=many: must be a whole number"),
    ("async_dapo.max_concurrent_prompts=null", "async_dapo.max_concurrent_prompts=None: must be a whole number"),
    ("async_dapo.drafts=ngram", "async_dapo.drafts=ngram: must be one of siblings"),
    ("async_dapo.stop_rule=soon", "async_dapo.stop_rule=soon: must be one of first_completed, fifo, drain"),
    (
        "async_dapo.rollout_strategy=partial_stale_kv",
        "actor_rollout_ref.rollout.free_cache_engine=True: async_dapo.rollout_strategy=partial_stale_kv keeps the KV",
    ),
    ("+actor_rollout_ref.rollout.enable_sleep_mode=False", "enable_sleep_mode=False: engines cannot sleep"),
    ("async_dapo.rollout_strategy=greedy", "async_dapo.rollout_strategy=greedy: must be one of discard"),
    ("+async_dapo.stop_rules=fifo", "async_dapo.stop_rules=fifo: unknown option; known: "),
    ("+async_dapo.reward.retries=2", "async_dapo.reward.retries=2: unknown option; known: "),
    ("~async_dapo.engine_timeout_s", "async_dapo.engine_timeout_s=<missing>: add it"),
    ("async_dapo.engine_timeout_s=0", "async_dapo.engine_timeout_s=0.0: must be > 0 seconds"),
    ("+async_dapo.stop_timeout_s=60", "async_dapo.stop_timeout_s=60: is no option any more: it is 2.5 x "),
    ("+async_dapo.calls.kept_loops=8", "async_dapo.calls.kept_loops=8: is no option any more: it is 64; leave it out"),
    ("async_dapo.reward.timeout_s=0", "async_dapo.reward.timeout_s=0.0: must be > 0 seconds"),
    ("async_dapo.reward.on_error=ignore", "async_dapo.reward.on_error=ignore: must be one of drop_group, raise"),
    ("async_dapo.screening.samples=1", "async_dapo.screening.samples=1: must be in 2..3: one sample cannot differ"),
    ("async_dapo.screening.samples=4", "async_dapo.screening.samples=4: must be in 2..3: one sample cannot differ"),
    (
        "async_dapo.screening.samples=2 actor_rollout_ref.rollout.n=2",
        "async_dapo.screening.samples=2: needs actor_rollout_ref.rollout.n >= 3",
    ),
    (
        "async_dapo.screening.samples=2 actor_rollout_ref.rollout.n=1",
        "actor_rollout_ref.rollout.n=1: a group of one never varies",
    ),
    (
        "async_dapo.screening.samples=2 algorithm.filter_groups.enable=False",
        "async_dapo.screening.samples=2: screening asks whether the filter's metric varies, and there is no filter",
    ),
    ("async_dapo.selection.by=luck", "async_dapo.selection.by=luck: must be one of uniform, history"),
    (
        "async_dapo.selection.by=history algorithm.filter_groups.enable=False",
        "async_dapo.selection.by=history: a history counts answers by the filter's metric, and there is no filter",
    ),
    ("data.train_batch_size=0", "data.train_batch_size=0: must be >= 1"),
    ("data.train_batch_size=null", "data.train_batch_size=None: must be a whole number"),
    ("actor_rollout_ref.rollout.n=0", "actor_rollout_ref.rollout.n=0: must be >= 1"),
    ("actor_rollout_ref.rollout.n=1", "actor_rollout_ref.rollout.n=1: a group of one never varies"),
    ("actor_rollout_ref.rollout.agent.num_workers=0", "actor_rollout_ref.rollout.agent.num_workers=0: must be >= 1"),
    ("algorithm.filter_groups.max_num_gen_batches=-1", "algorithm.filter_groups.max_num_gen_batches=-1: must be >= 0"),
    ("algorithm.filter_groups.metric=reward", "algorithm.filter_groups.metric=reward: the filter judges a raw metric"),
    ("algorithm.adv_estimator=remax", "algorithm.adv_estimator=remax: the V1 trainer lacks what it needs"),
    ("algorithm.use_pf_ppo=True", "algorithm.use_pf_ppo=True: acts with adv_estimator=gae only"),
    ("trainer.nnodes=0", "trainer.nnodes=0: must be >= 1"),
    ("trainer.critic_warmup=5", "trainer.critic_warmup=5: there is no critic"),
    ("trainer.resume_mode=resume_path", "trainer.resume_from_path=None: set it to a checkpoint folder"),
    (
        "async_dapo.max_concurrent_prompts=50000 async_dapo.rollout_pool_size=null",
        "async_dapo.max_concurrent_prompts=50000: 8 workers could wait with 1600000 requests at once",
    ),
    ("reward.num_workers=0", "reward.num_workers=0: must be >= 1"),
    ("async_dapo.reward.processes=-1", "async_dapo.reward.processes=-1: must be >= 0"),
    (
        "reward.reward_model.enable=True",
        "reward.reward_model.enable_resource_pool=False: a reward model on the trainer's GPUs scores only after",
    ),
    ("reward.reward_model.enable_resource_pool=True", "enable_resource_pool=True: would reserve GPUs for nothing"),
    (
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2: an engine takes 2 GPUs, which does not divide the 1",
    ),
    ("actor_rollout_ref.rollout.max_model_len=63", "actor_rollout_ref.rollout.max_model_len=63: must be >= 64"),
    (
        "actor_rollout_ref.rollout.val_kwargs.n=4",
        "actor_rollout_ref.rollout.val_kwargs.temperature=0: gives the same answer 4 times",
    ),
    (
        "actor_rollout_ref.rollout.val_kwargs.temperature=1",
        "actor_rollout_ref.rollout.val_kwargs.do_sample=False: verl ignores it, and val_kwargs.temperature=1 samples",
    ),
    (
        "data.max_response_length=993",
        "actor_rollout_ref.rollout.max_model_len=None: the model has 1024 positions",
    ),
    (
        "actor_rollout_ref.rollout.max_model_len=1025",
        "actor_rollout_ref.rollout.max_model_len=1025: the model has 1024 positions",
    ),
    (
        "actor_rollout_ref.actor.policy_loss.loss_mode=bypass_mode",
        "actor_rollout_ref.actor.policy_loss.loss_mode=bypass_mode: would take recomputed log-probs",
    ),
    (
        "actor_rollout_ref.actor.checkpoint.async_save=True",
        "actor_rollout_ref.actor.checkpoint.async_save=True: nobody would know when a checkpoint is complete",
    ),
    (
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=None: must divide the 32 trajectories",
    ),
    (
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=5",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=5: must divide the 32 trajectories",
    ),
    ("actor_rollout_ref.actor.loss_agg_mode=mean", "verl refuses these options: "),
    ("data.val_max_samples=${nowhere}", "data.val_max_samples=<unreadable>: "),
    ("trainer.default_hdfs_dir=hdfs://run", "trainer.default_hdfs_dir=hdfs://run: verl copies the model there, but"),
    (
        "transfer_queue.backend.SimpleStorage.total_storage_size=95",
        "transfer_queue.backend.SimpleStorage.total_storage_size=95: must be >= 96 trajectories",
    ),
    (
        "actor_rollout_ref.rollout.val_kwargs.n=100000 actor_rollout_ref.rollout.val_kwargs.temperature=1.0 "
        "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
        "transfer_queue.backend.SimpleStorage.total_storage_size=100000: must be >= ",
    ),
    (
        "algorithm.rollout_correction.loss_type=reinforce",
        "algorithm.rollout_correction.loss_type=reinforce: acts with async_dapo.importance_sampling=bypass only",
    ),
]


def test_given_the_valid_run_when_checked_then_its_options_are_returned(run):
    options = check_all(run())
    assert (options.target_valid_groups, options.rollout_n) == (8, 4)


@pytest.mark.parametrize("engine", ["megatron", "veomni", "torchtitan"])
def test_a_training_engine_that_is_not_tested_with_the_recipe_is_refused(run, files, engine):
    with pytest.raises(ConfigError) as refused:
        check_all(compose_run([*valid_overrides(files), f"model_engine={engine}"]))
    assert str(refused.value).startswith(f"model_engine={engine}: must be dp: of verl's training engines, FSDP alone")
    assert f"actor.strategy={engine}: must be fsdp2 or fsdp: " in refusal(
        run, f"actor_rollout_ref.actor.strategy={engine}"
    )


@pytest.mark.parametrize(
    ("overrides", "stop_rule"),
    [
        ([], "first_completed"),
        (["async_dapo.rollout_strategy=discard"], "fifo"),
        (["async_dapo.max_staleness=0"], "fifo"),  # nothing is kept: in order of completion, short answers would win
    ],
)
def test_the_default_stop_rule_is_unbiased(run, overrides, stop_rule):
    assert AsyncDAPOConfig.from_hydra(run(*overrides)).stop_rule == stop_rule


@pytest.mark.parametrize(("override", "message"), BAD_OPTIONS, ids=[override for override, _ in BAD_OPTIONS])
def test_a_bad_option_is_refused_with_key_value_and_remedy(run, override, message):
    assert message in refusal(run, *override.split())


def another_value(accepted):
    """A value of the accepted one's kind that is not accepted."""
    if any(isinstance(value, bool) for value in accepted):
        return next(value for value in (True, False) if value not in accepted)
    number = next((value for value in accepted if isinstance(value, int | float)), None)
    if number is not None:
        return number + 3
    return "{other:1}" if any(isinstance(value, dict) for value in accepted) else "other"


@pytest.mark.parametrize("key", [key for key, _, _ in (*FIXED, *IGNORED)])
def test_every_option_that_would_be_ignored_is_refused(run, key):
    accepted, why = next((accepted, why) for name, accepted, why in (*FIXED, *IGNORED) if name == key)
    value = another_value(accepted)
    message = refusal(run, f"++{key}={value}")
    assert message.startswith(f"{key}=") and why in message


@pytest.mark.parametrize(("key", "read"), SHADOWED)
def test_an_option_that_another_one_shadows_must_agree_with_it(run, key, read):
    value = not OmegaConf.select(run(), read)
    assert f"{key}={value}: is ignored, verl reads {read}" in refusal(run, f"{key}={value}")


ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"


def check_on_gpus(run: ComposeRun, *overrides: str) -> None:
    config = run("trainer.device=cuda", *overrides)
    engine_check.check_engines(config, AsyncDAPOConfig.from_hydra(config))


def test_given_gpus_without_flash_attention_when_checked_then_the_package_is_named(run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(engine_check, "find_spec", lambda package: None)
    with pytest.raises(
        ConfigError, match=f"^{ATTENTION}=flash_attention_2: .*pip install --no-build-isolation flash-attn"
    ):
        check_on_gpus(run)


def test_given_gpus_with_flash_attention_or_without_need_of_it_when_checked_then_accepted(run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(engine_check, "find_spec", lambda package: package == "flash_attn" or None)
    check_on_gpus(run)
    monkeypatch.setattr(engine_check, "find_spec", lambda package: None)
    check_on_gpus(run, f"++{ATTENTION}=sdpa")


def test_an_error_raised_in_an_actor_arrives_whole():
    error = pickle.loads(pickle.dumps(ConfigError("a.key", 1, "must be 2")))
    assert str(error) == "a.key=1: must be 2"


@pytest.mark.parametrize(("size", "warns"), [(16, False), (5_000, True)])
def test_given_a_fixed_pool_then_the_start_warns_of_one_that_staleness_does_not_allow(run, caplog, size, warns):
    config = run(f"async_dapo.rollout_pool_size={size}", "async_dapo.max_staleness=1")
    with caplog.at_level("WARNING", logger=engine_check.__name__):  # vLLM's import sets the root logger to ERROR
        engine_check.check_engines(config, AsyncDAPOConfig.from_hydra(config))
    assert (f"async_dapo.rollout_pool_size={size}" in caplog.text) == warns
