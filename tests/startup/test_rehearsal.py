"""A rehearsal takes what training takes: the same configuration, the same refusals, and options that act."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.startup.preflight import check_all
from recipe.async_dapo_lab.plan.candidates import bound_of
from recipe.async_dapo_lab.plan.hardware import load_model
from recipe.async_dapo_lab.rehearsal import options as options_module
from recipe.async_dapo_lab.rehearsal import supervisor
from recipe.async_dapo_lab.rehearsal.emulation import (
    check_rehearsable,
    emulate,
    use_stand_in,
)
from recipe.async_dapo_lab.rehearsal.options import WITH_REHEARSAL, RehearsalOptions
from recipe.async_dapo_lab.rehearsal.report import how_long
from recipe.async_dapo_lab.rehearsal.training import TimedRanks

from ..support.composed_runs import ComposeRun, compose_run, override

STAND_IN = [
    *WITH_REHEARSAL,
    "rehearsal.stand_in=True",
    "trainer.device=cuda",
    "trainer.n_gpus_per_node=8",
    "data.train_batch_size=16",
    "data.max_prompt_length=256",
    "data.max_response_length=8192",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
]


@pytest.fixture(scope="module")
def composed() -> DictConfig:
    return compose_run(STAND_IN)


@pytest.fixture
def stand_in_run(composed: DictConfig, tmp_path: Path) -> ComposeRun:
    def compose_with(*overrides: str) -> DictConfig:
        config = override(composed, [f"rehearsal.output={tmp_path}/run", *overrides])
        use_stand_in(config, RehearsalOptions.from_hydra(config))
        return config

    return compose_with


def test_given_a_reference_script_when_a_run_is_rehearsed_then_what_lies_where_the_user_stands_does_not_run(
    monkeypatch, tmp_path
):
    for is_safe in (True, False):
        monkeypatch.setattr(sys, "flags", SimpleNamespace(safe_path=is_safe))
        command = supervisor._command(["data.seed=1"], tmp_path, SimpleNamespace(path=tmp_path))
        assert (command[1] == "-P") is is_safe and f"{supervisor.__package__}.run" in command


def test_given_nothing_but_a_stand_in_when_a_gpu_run_is_checked_then_it_passes_and_keeps_its_shape(stand_in_run):
    config = stand_in_run()
    options = RehearsalOptions.from_hydra(config)
    check_rehearsable(config)
    check_all(config)
    lanes = config.async_dapo.max_concurrent_prompts * config.actor_rollout_ref.rollout.agent.num_workers
    emulate(config, options)
    scenario = options.scenario(config)
    assert (scenario.num_servers, scenario.tensor_parallel_size, scenario.num_gpus) == (4, 2, 8)
    assert scenario.model.weight_bytes == load_model("qwen3-8b").weight_bytes
    assert (scenario.train_batch_size, scenario.rollout_n, scenario.max_response_length) == (16, 8, 8192)
    agent = config.actor_rollout_ref.rollout.agent
    assert agent.num_workers == 2 and agent.num_workers * config.async_dapo.max_concurrent_prompts == lanes
    assert config.trainer.total_training_steps == options.steps
    assert str(options.folder) in config.trainer.default_local_dir, "a rehearsal wrote into the run's checkpoints"


DRAFTS = ("async_dapo.drafts=suffix", "rehearsal.drafts_accepted=1.5", "rehearsal.drafts_accepted_ratio=1")


@pytest.mark.parametrize("drafts", [(), DRAFTS], ids=("plain", "drafts"))
def test_before_its_first_step_a_rehearsal_says_how_long_it_takes(stand_in_run, drafts):
    config = stand_in_run("rehearsal.speedup=20", "rehearsal.steps=6", *drafts)
    options = RehearsalOptions.from_hydra(config)
    emulate(config, options)
    scenario = options.scenario(config)
    bound_s = bound_of(scenario, drafts=bool(drafts)).step_s
    assert not drafts or bound_s < 0.9 * bound_of(scenario).step_s
    least, most = ((60 + 6 * bound_s / share / 20) / 60 for share in (1, 0.5))
    said = how_long(config, options)
    assert f"about {least:.0f} to {most:.0f} min" in said and f"6 steps of {bound_s:.0f} virtual s or more" in said


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rehearsal.speedup=0", r"rehearsal\.speedup=0: must be a number > 0"),
        ("rehearsal.steps=0", r"rehearsal\.steps=0: must be a whole number >= 1"),
        ("rehearsal.warmup=7", r"rehearsal\.warmup=7: must be below rehearsal\.steps=7"),
        ("rehearsal.workers=0", r"rehearsal\.workers=0: must be a whole number >= 1"),
        ("+rehearsal.speed=3", r"rehearsal\.speed=3: unknown option"),
        ("rehearsal.accelerator=abacus", r"accelerator=abacus: unknown; choose one of"),
        ("async_dapo.drafts=suffix", r"drafts_accepted=None: say how many tokens of drafts are accepted in a step"),
        ("rehearsal.valid_share=0", r"valid_share=0: must be a number > 0 and <= 1"),
        ("trainer.n_gpus_per_node=3", r"trainer\.n_gpus_per_node=3: 3 GPUs are no whole number of servers of 2"),
        ("reward.reward_model.enable=True", r"reward\.reward_model\.enable=True: reward models are not rehearsed"),
        (
            "async_dapo.placement=separate",
            r"async_dapo\.placement=separate: engines on GPUs of their own are not rehearsed",
        ),
    ],
)
def test_given_a_bad_option_then_it_is_refused_by_name(stand_in_run, override, message) -> None:
    def check() -> None:
        config = stand_in_run(override)
        check_rehearsable(config)
        RehearsalOptions.from_hydra(config).step_cost(config)

    with pytest.raises(ConfigError, match=message):
        check()


@pytest.mark.parametrize("name", options_module.AGENTS_NEED)
def test_given_a_copy_that_runs_no_agent_programs_then_a_scripted_one_is_refused_by_name(
    stand_in_run, monkeypatch, name
):
    config = stand_in_run("rehearsal.agent_turns=3")
    there = dict.fromkeys(other for other in options_module.AGENTS_NEED if other != name)
    monkeypatch.setattr(options_module, "declared", lambda: there)
    with pytest.raises(ConfigError, match=rf"rehearsal\.agent_turns=3: extensions/{name} is not in this copy"):
        RehearsalOptions.from_hydra(config)


def test_engines_of_a_rehearsal_take_the_factor_that_a_record_was_fitted_with(stand_in_run):
    costs = [
        RehearsalOptions.from_hydra(config).step_cost(config)
        for config in (stand_in_run(), stand_in_run("rehearsal.engine_factor=1.7"))
    ]
    assert costs[0].times(1.7) == costs[1] != costs[0]


OWN = "+actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config={method:suffix}"


@pytest.mark.parametrize("drafts", ["async_dapo.drafts=suffix", OWN])
def test_given_drafts_then_engines_take_what_the_planner_says_of_them(stand_in_run, drafts):
    config = stand_in_run(drafts, "rehearsal.drafts_accepted=0.6")
    options = RehearsalOptions.from_hydra(config)
    scenario = options.scenario(config)
    assert options.step_cost(config) == scenario.step_cost(drafts=True) != scenario.step_cost()


def test_given_passes_over_a_batch_then_whoever_asks_waits_for_each_of_them() -> None:
    asked: list[str] = []
    spent: list[float] = []
    tags = [{"seq_len": 3}, {"seq_len": 4}, {"seq_len": 9, "is_padding": True}]
    batch = KVBatchMeta(partition_id="train", keys=["a", "b", "pad"], tags=tags)
    workers = SimpleNamespace(
        compute_log_prob=lambda _: asked.append("log-probs"),
        update_actor=lambda _: asked.append("training"),
        call_extension=lambda *_: asked.append("earlier weights"),
    )
    cost = SimpleNamespace(log_prob_s=lambda tokens, squares: tokens, train_s=lambda tokens, squares: squares)
    ranks = TimedRanks(workers, SimpleNamespace(spend=spent.append), cost)
    ranks.compute_log_prob(batch)
    ranks.call_extension("mixture", "snapshots.load", 3)
    ranks.compute_log_prob(batch)
    ranks.update_actor(batch)
    assert asked == ["log-probs", "earlier weights", "log-probs", "training"] and spent == [7, 7, 25]
