"""Values of the recipe's options and of verl's numbers are taken, or refused before Ray starts, as a table says."""

import re
from collections.abc import Callable
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from omegaconf import DictConfig, OmegaConf
from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager

from docs.declared import OPTIONS_FILE, declared
from recipe.async_dapo.config.checkpoint_options import checkpoints_to_keep
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.values import ConfigError, ConfigErrors, alternatives
from recipe.async_dapo.startup.verl_options import MAY_BE_NULL, NODES, NUMBERS, SWITCHES, TEXTS, check_types

from ..support.composed_runs import ComposeRun, of_options

pytestmark = pytest.mark.filterwarnings("ignore:set sequence parallel to false")  # of verl, with one rank
VALUES = ("-1", "0", "null", "0.5", "some", "nan")
# o = each of these options takes the value, x = it is refused by name, as nan is everywhere.
TABLE = {
    "x x x x x": """
        trainer.total_epochs trainer.nnodes trainer.n_gpus_per_node data.train_batch_size data.max_prompt_length
        data.max_response_length reward.num_workers
        transfer_queue.backend.SimpleStorage.num_data_storage_units actor_rollout_ref.rollout.n
        actor_rollout_ref.rollout.agent.num_workers actor_rollout_ref.rollout.val_kwargs.n
        actor_rollout_ref.rollout.n_gpus_per_node actor_rollout_ref.rollout.tensor_model_parallel_size
        actor_rollout_ref.rollout.data_parallel_size actor_rollout_ref.rollout.pipeline_model_parallel_size
        actor_rollout_ref.rollout.max_num_seqs actor_rollout_ref.rollout.max_num_batched_tokens
        actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu
        actor_rollout_ref.ref.ulysses_sequence_parallel_size
        actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size actor_rollout_ref.actor.ppo_epochs
        actor_rollout_ref.actor.ppo_mini_batch_size actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu
        actor_rollout_ref.actor.ulysses_sequence_parallel_size
        actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size critic.ppo_epochs critic.ppo_mini_batch_size
        critic.ppo_infer_max_token_len_per_gpu critic.fsdp.ulysses_sequence_parallel_size
        actor_rollout_ref.actor.megatron.tensor_model_parallel_size
        actor_rollout_ref.actor.megatron.pipeline_model_parallel_size
        actor_rollout_ref.actor.megatron.context_parallel_size actor_rollout_ref.actor.veomni.ulysses_parallel_size
        actor_rollout_ref.ref.megatron.tensor_model_parallel_size
        actor_rollout_ref.ref.megatron.pipeline_model_parallel_size
        actor_rollout_ref.ref.megatron.context_parallel_size actor_rollout_ref.ref.veomni.ulysses_parallel_size
        critic.megatron.tensor_model_parallel_size critic.megatron.pipeline_model_parallel_size
        critic.megatron.context_parallel_size critic.veomni.ulysses_parallel_size async_dapo.placement
        actor_rollout_ref.actor.clip_ratio_c actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes
        async_dapo.max_concurrent_prompts async_dapo.over_sampling_batch_size async_dapo.rollout_strategy
        async_dapo.reward.on_error async_dapo.selection.by
    """,
    "x x o x x": """
        trainer.total_training_steps transfer_queue.backend.SimpleStorage.total_storage_size
        ray_kwargs.ray_init.num_cpus actor_rollout_ref.rollout.max_model_len
        actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu
        actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu actor_rollout_ref.ref.log_prob_max_token_len_per_gpu
        actor_rollout_ref.actor.ppo_max_token_len_per_gpu async_dapo.max_loads_per_server async_dapo.stop_rule
        async_dapo.rollout_pool_size async_dapo.max_tokens_per_round async_dapo.importance_sampling async_dapo.drafts
        async_dapo.sources async_dapo.calls.check
        actor_rollout_ref.rollout.engine_kwargs.vllm.stream_interval data.filter_overlong_prompts_workers
        actor_rollout_ref.actor.megatron.expert_model_parallel_size
        actor_rollout_ref.actor.megatron.expert_tensor_parallel_size
        actor_rollout_ref.ref.megatron.expert_model_parallel_size
        actor_rollout_ref.ref.megatron.expert_tensor_parallel_size
        critic.megatron.expert_model_parallel_size critic.megatron.expert_tensor_parallel_size
    """,
    "o o x x x": """
        trainer.save_freq trainer.test_freq trainer.critic_warmup data.train_max_samples data.val_max_samples
        actor_rollout_ref.actor.data_loader_seed
        algorithm.filter_groups.max_num_gen_batches actor_rollout_ref.rollout.val_kwargs.top_k
    """,
    "o o o x x": """
        trainer.max_actor_ckpt_to_keep trainer.max_critic_ckpt_to_keep reward.reward_kwargs.max_resp_len
        actor_rollout_ref.actor.optim.lr_warmup_steps
    """,
    "x o o x x": """
        data.val_batch_size data.seed async_dapo.max_staleness async_dapo.reward.processes
    """,
    "x x x o x": """
        reward.reward_kwargs.overlong_buffer_cfg.penalty_factor actor_rollout_ref.rollout.temperature
        actor_rollout_ref.rollout.val_kwargs.top_p actor_rollout_ref.rollout.gpu_memory_utilization
        actor_rollout_ref.actor.optim.clip_grad
        async_dapo.reward.timeout_s async_dapo.calls.timeout_s async_dapo.round_timeout_s async_dapo.engine_timeout_s
    """,
    "x x o o x": """
        async_dapo.host_kv_gib
    """,
    "x o x x x": """
        actor_rollout_ref.model.lora_rank actor_rollout_ref.model.lora.rank actor_rollout_ref.rollout.nnodes
        data.dataloader_num_workers actor_rollout_ref.rollout.moe_load_balance_metrics_interval
        actor_rollout_ref.rollout.seed
    """,
    "x o x o x": """
        actor_rollout_ref.rollout.val_kwargs.temperature actor_rollout_ref.actor.optim.lr
        actor_rollout_ref.actor.optim.weight_decay actor_rollout_ref.actor.clip_ratio
        actor_rollout_ref.actor.kl_loss_coef actor_rollout_ref.actor.optim.lr_warmup_steps_ratio
        critic.optim.lr_warmup_steps_ratio
    """,
    "o o x o x": """
        actor_rollout_ref.actor.entropy_coeff
    """,
    "x o o o x": """
        async_dapo.max_partial_share actor_rollout_ref.actor.clip_ratio_low actor_rollout_ref.actor.clip_ratio_high
    """,
    "x x o x o": """
        async_dapo.report_dir async_dapo.recorder
    """,
}
ROWS = {key: [*cells.split(), "x"] for cells, keys in TABLE.items() for key in keys.split()}


def with_value(run: ComposeRun, key: str, value: str) -> DictConfig:
    critic = ("algorithm.adv_estimator=gae", "critic.model.path=${actor_rollout_ref.model.path}")
    critic += ("critic.ppo_micro_batch_size_per_gpu=1",)
    needed = {
        "actor_rollout_ref.rollout.val_kwargs.temperature": "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
        "async_dapo.host_kv_gib": "async_dapo.rollout_strategy=partial_stale_kv",
    }
    others = [needed[key]] if key in needed and value == "0.5" else []
    others += [f"model_engine={engine}" for engine in ("megatron", "veomni") if f".{engine}." in key]
    return run(*(critic if key.startswith("critic.") else ()), *others, f"++{key}={value}")


def is_refused_by_type(key: str, value: str) -> bool:
    """A null that its type takes is refused by other checks."""
    return key in NUMBERS and (value != "null" or NoneType not in alternatives(NUMBERS[key]))


@pytest.mark.parametrize("value", VALUES)
def test_verls_numbers_out_of_range_are_refused_by_name(run, value):
    wrong = [key for key in NUMBERS if ROWS[key][VALUES.index(value)] == "x" and is_refused_by_type(key, value)]
    with pytest.raises(ConfigErrors) as found:
        check_types(run(*(f"++{key}={value}" for key in wrong)))
    assert {error.args[0] for error in found.value.errors if ": must " in str(error)} >= set(wrong)


@pytest.fixture(scope="module")
def found() -> Callable[[DictConfig], list[str]]:
    """What the checks of options find: many values are those of the valid run, which is checked once."""
    known: dict[str, list[str]] = {}

    def find(config: DictConfig) -> list[str]:
        written = repr(OmegaConf.to_container(config, resolve=False))
        if written not in known:
            known[written] = of_options(config)
        return known[written]

    return find


@pytest.mark.parametrize("key", ROWS)
def test_a_value_is_taken_or_refused_by_name_as_the_table_says(run, found, key):
    for value, cell in zip(VALUES, ROWS[key], strict=True):
        if cell == "o":
            assert not found(with_value(run, key, value)), value
        elif not is_refused_by_type(key, value):
            errors = of_options(with_value(run, key, value))
            assert any(error.startswith(f"{key}=") and ": must " in error for error in errors), (value, errors)


def test_a_text_as_a_switch_is_refused_by_name(run):
    with pytest.raises(ConfigErrors) as found:
        check_types(run(*(f"++{key}=off" for key in SWITCHES)))
    said = {str(error) for error in found.value.errors}
    remedy = "must be True or False, or null, not text; of a variable of the environment: ${oc.decode:${oc.env:NAME}}"
    assert said == {f"{key}=off: {remedy}" for key in SWITCHES}


@pytest.mark.parametrize("value", ["-1", "0", "1.5", "True", "[1]", "{}", "{a:1}"])
def test_what_is_no_text_is_refused_by_name(run, value):
    with pytest.raises(ConfigErrors) as found:
        check_types(run(*(f"++{key}={value}" for key in TEXTS)))
    said = {error.args[0]: error.args[2] for error in found.value.errors}
    assert said.keys() >= TEXTS.keys() and all("text" in remedy for remedy in said.values())


@pytest.mark.parametrize("node", NODES)
def test_a_value_in_place_of_a_node_of_options_is_refused_by_name(run, node):
    for value in ("0", "some") if node in MAY_BE_NULL else ("null", "0", "some"):
        with pytest.raises(ConfigError, match=f"^{re.escape(node)}=(None|{value}): must hold options; leave out"):
            check_types(run(f"++{node}={value}"))


def test_a_time_limit_that_no_socket_takes_is_refused_by_name(run):
    assert of_options(run("async_dapo.reward.timeout_s=inf")) == [
        "async_dapo.reward.timeout_s=inf: must be a number > 0 and <= 1e6 [seconds]"
    ]


def test_the_table_has_every_number_that_is_checked_and_every_option_of_the_recipe(run):
    own = OmegaConf.to_container(run().async_dapo)
    leaves = {f"{name}.{part}" if part else name for name, node in own.items()
              for part in (node if isinstance(node, dict) else [""])}  # fmt: skip
    assert NUMBERS.keys() | {f"async_dapo.{leaf}" for leaf in leaves} <= ROWS.keys()


def test_units_and_ranges_in_the_comments_of_the_yaml_are_those_of_the_fields():
    """`[seconds, > 0]` says what `Meta(gt=0)` does."""
    for key, _, meaning in declared(OPTIONS_FILE):
        if not key.startswith("async_dapo."):
            continue
        kind: Any = AsyncDAPOConfig
        for name in key.split(".")[1:]:
            kind = get_type_hints(kind, include_extras=True)[name]
        metas = [meta for one in alternatives(kind) if get_origin(one) is Annotated for meta in get_args(one)[1:]]
        ranges = [f"{sign} {limit:g}" for meta in metas for sign, limit in ((">=", meta.ge), (">", meta.gt))
                  if limit is not None and (sign == ">" or meta.le is None)]  # fmt: skip
        ranges += [f"{meta.ge:g}-{meta.le:g}" for meta in metas if meta.ge is not None and meta.le is not None]
        said = re.findall(r"(?:>=?) [\d.]+|\b\d-\d\b", " ".join(re.findall(r"\[[^\]]*\]", meaning)))
        assert said == ranges, key


@pytest.mark.parametrize("keep", [-1, 0, None, 1, 3])
def test_as_many_checkpoints_are_kept_as_verl_keeps(keep, monkeypatch):
    manager = BaseCheckpointManager.__new__(BaseCheckpointManager)
    manager.previous_saved_paths = []
    monkeypatch.setattr(manager, "remove_previous_save_local_path", lambda paths: None)
    for step in range(6):
        manager.ensure_checkpoint_capacity(keep)
        manager.register_checkpoint(f"step {step}", keep)
    kept = checkpoints_to_keep(OmegaConf.create({"trainer": {"max_actor_ckpt_to_keep": keep}}))
    assert len(manager.previous_saved_paths) == (6 if kept is None else kept)


def test_a_limit_below_one_is_none_as_in_verl(run):
    limits = [AsyncDAPOConfig.from_hydra(run(f"algorithm.filter_groups.max_num_gen_batches={n}")) for n in (-1, 0, 2)]
    assert [options.filter.max_num_gen_batches for options in limits] == [0, 0, 2]
