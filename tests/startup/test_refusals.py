"""Options that are wrong, or do not go together, are refused before Ray starts: with key, value and remedy."""

from types import SimpleNamespace

import pytest

from docs.support import BY_HAND, REFUSED, SUPPORT
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.reading import TOGETHER
from recipe.async_dapo.config.router import router_options
from recipe.async_dapo.config.values import ConfigErrors
from recipe.async_dapo.startup.facts import Run
from recipe.async_dapo.startup.preflight import check_all, findings
from recipe.async_dapo.startup.rules import RULES
from recipe.async_dapo.startup.verl_options import (
    FIXED,
    TRAINING_ENGINES,
    check_verl_options,
)
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

from ..support.composed_runs import compose_run, of_options, valid_overrides
from ..support.documents import ROOT
from ..support.refusals import another_value, assert_line, assert_refused, in_full
from ..support.refused_options import LINES


@pytest.mark.parametrize(("rule", "line"), [*zip((*RULES, *TOGETHER), LINES, strict=True)], ids=LINES)
def test_a_row_is_refused_with_key_value_and_remedy_and_its_neighbour_passes(run, monkeypatch, rule, line):
    assert_refused(run, monkeypatch, rule, line)


# Of what is in no table: overrides -> how the message begins, with the first override where it begins with a colon.
OTHERS = """
model_engine=torchtitan -> : must be dp or megatron or veomni:
~async_dapo.engine_timeout_s -> async_dapo.engine_timeout_s=<missing>: add it
async_dapo.reward=null -> async_dapo.reward=None: must hold options
async_dapo.importance_sampling=balance -> : must be one of bypass, decoupled, mixture, none
async_dapo.stop_rule=fifoo -> : must be one of first_completed, fifo, drain; did you mean fifo\\?
async_dapo.rollout_pool_size=much -> : must be a whole number >= 1, or auto, or null
data.val_max_samples=${nowhere} -> data.val_max_samples=<unreadable>:
async_dapo.max_tokens_per_round=16 async_dapo.max_staleness=0 -> : async_dapo.rollout_strategy=partial with .*=0 cannot
trainer.resume_mode=resume_path -> trainer.resume_from_path=None: is read with
reward.reward_model.enable_resource_pool=True -> : must equal reward.reward_model.enable=False
vllm.max-num-seqs=2000 -> : would take the place of actor_rollout_ref.rollout.max_num_seqs=
vllm.tensor_parallel_size=2 -> : would take the place of actor_rollout_ref.rollout.tensor_model_parallel_size=1
actor.optim.lr_warmup_steps_ratio=10 -> : must be a number in 0..1
vllm.stream_interval=0 -> : must be a whole number >= 1
""".strip().splitlines()


@pytest.mark.parametrize("line", OTHERS)
def test_what_is_in_no_table_is_refused_too(run, line):
    assert_line(run, line)


@pytest.mark.parametrize(("what", "how", "by"), [row[1:] for row in SUPPORT if row[2] != BY_HAND], ids=str)
def test_a_row_of_what_is_supported_says_what_its_test_or_a_check_says(run, what, how, by):
    assert of_options(run(*by.split())) if how == REFUSED else (ROOT / "tests" / by).is_file(), what


@pytest.mark.parametrize(("engine", "default"), [(name, known[0]) for name, known in TRAINING_ENGINES.items()])
def test_each_training_engine_has_its_own_strategy_and_no_other(files, engine, default):
    sizes = in_full("megatron")[1:] if engine == "megatron" else []  # verl warns of one rank
    config = compose_run([*valid_overrides(files), f"model_engine={engine}", *sizes])
    assert config.actor_rollout_ref.actor.strategy == config.actor_rollout_ref.ref.strategy == default
    check_all(config)
    other = next(known[0] for name, known in TRAINING_ENGINES.items() if name != engine)
    config.actor_rollout_ref.actor.strategy = other
    [found] = [str(one.error) for one in findings(config) if one.error is not None]
    assert found.startswith(f"actor_rollout_ref.actor.strategy={other}: must be {default}")


@pytest.mark.parametrize(
    ("engine", "sizes", "ranks", "split"),
    [
        ("dp", "actor.fsdp_config.ulysses_sequence_parallel_size=2", 8, 2),
        ("veomni", "actor.veomni.ulysses_parallel_size=4", 4, 4),
        (
            "megatron",
            "actor.megatron.tensor_model_parallel_size=2 actor.megatron.pipeline_model_parallel_size=4 "
            "actor.megatron.context_parallel_size=2 actor.megatron.expert_model_parallel_size=8",
            1,
            2,
        ),
    ],
)
def test_data_parallel_ranks_are_counted_as_each_training_engine_makes_them(run, engine, sizes, ranks, split):
    config = run(f"model_engine={engine}", "trainer.n_gpus_per_node=16", *in_full(sizes))
    facts = Run.of(config, AsyncDAPOConfig.from_hydra(config))
    assert (facts.ranks["actor"], facts.least_tok["actor"]) == (ranks, 64 // split)


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


def test_every_option_that_the_recipe_decides_is_refused(run):
    with pytest.raises(ConfigErrors) as found:
        check_verl_options(run(*(f"++{key}={another_value(accepted)}" for key, accepted, _ in FIXED)))
    said = {error.args[0]: str(error) for error in found.value.errors}
    assert not [key for key, _, why in FIXED if why not in said.get(key, "")]


@pytest.mark.parametrize(
    ("overrides", "known"),
    [
        ("", {"continues"}),
        ("async_dapo.max_staleness=0", set()),  # an interrupted request starts anew
        ("host_kv", {"continues", "has_old_kv"}),
    ],
)
def test_the_client_knows_how_requests_go_on(run, overrides, known):
    trainer = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
    trainer.config = run(*in_full(overrides))
    trainer.options = AsyncDAPOConfig.from_hydra(trainer.config)
    trainer.llm_server_manager = SimpleNamespace(get_client=lambda **arguments: arguments)
    assert {name for name, value in trainer.get_llm_client().items() if value is True} == known
    assert router_options(trainer.options, most_per_server=1)["balance"]["keeps_kv"] is ("has_old_kv" in known)
