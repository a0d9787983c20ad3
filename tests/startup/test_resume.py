"""What a checkpoint holds of the rollout, and that it is refused where it does not fit the options."""

import inspect
import json
import linecache
import logging
import re
from contextlib import nullcontext
from dataclasses import fields, replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import PIL.Image
import pytest
import torch
from datasets import Dataset, Features, Image
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.utils import create_rl_sampler
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.workers.config.optimizer import FSDPOptimizerConfig, build_optimizer
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

from recipe.async_dapo import store
from recipe.async_dapo.config.checkpoint_options import lasting_options
from recipe.async_dapo.config.derived import longest_trained_tok
from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.values import ConfigError, Placement
from recipe.async_dapo.core.ledger import Ledger
from recipe.async_dapo.core.mix import ALL
from recipe.async_dapo.core.outcome import CarriedGroup, GroupOutcome, Verdict
from recipe.async_dapo.core.pool import PoolState
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory, Turn
from recipe.async_dapo.record.checkpoint_folder import COMPLETE_FILE, absent_ranks, read_complete
from recipe.async_dapo.record.trained_model import TrainedModel
from recipe.async_dapo.recording import SampledTokens, append_tokens
from recipe.async_dapo.rollout.packed_output import PackedOutput
from recipe.async_dapo.startup.checkpoint_to_resume import NEWEST_FILE, check_resume
from recipe.async_dapo.training import checkpoints as saved_state
from recipe.async_dapo.training import run_checkpoints
from recipe.async_dapo.training.checkpoints import RolloutState, from_frames, to_frames
from recipe.async_dapo.training.replay_buffer import RoundReplayBuffer
from recipe.async_dapo.training.run_checkpoints import KeptCheckpoints, give_up_unfit, prompts_in_words
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

from ..support.checkpoints import ANEW_OF_ITS_OWN, write_checkpoint
from ..support.composed_runs import ComposeRun

COLOCATED = Placement.COLOCATED


def buffer(run: ComposeRun, *overrides: str, placement: Placement = COLOCATED) -> RoundReplayBuffer:
    config = run("async_dapo.max_partial_share=0.5", "async_dapo.over_sampling_batch_size=32", *overrides)
    options = replace(AsyncDAPOConfig.from_hydra(config), placement=placement)
    return RoundReplayBuffer(options, draw=lambda count: [])


@pytest.fixture
def checkpoint(run) -> list[bytes]:
    """Of a run that holds a waiting group of 4, and starts fewer groups than it may."""
    held = buffer(run)
    trajectories = [Trajectory(session_id=k) for k in range(4)]
    held.pool.add_drawn([PromptGroup(uid="a", prompt={}, drawn_at_step=1, trajectories=trajectories)])
    held.mix.over_sampling.observe(0.9)
    return list(to_frames(held.state()))


def test_given_a_checkpoint_when_loaded_then_the_run_goes_on_where_it_was(run, checkpoint):
    resumed = buffer(run)
    resumed.restore(from_frames(checkpoint))
    assert resumed.pool.available[ALL].expected_valid(1.0) == 1
    assert resumed.mix.groups_to_hold == 8 + 24 // 2


def test_given_fewer_groups_to_hold_or_to_remember_when_loaded_then_the_options_of_this_run_hold(run, checkpoint):
    resumed = buffer(run, "async_dapo.over_sampling_batch_size=10")
    resumed.restore(from_frames(checkpoint))
    assert resumed.mix.groups_to_hold == 10


def test_given_groups_of_another_size_when_loaded_then_the_option_is_named(run, checkpoint):
    resumed = buffer(run, "actor_rollout_ref.rollout.n=8")
    with pytest.raises(
        ConfigError, match=r"^actor_rollout_ref\.rollout\.n=8: the checkpoint holds groups of 4; resume"
    ):
        resumed.restore(from_frames(checkpoint))


def scored(uid: str, *, tokens: int, **fields: float) -> PromptGroup:
    """An unfinished group of 4, whose first response was scored."""
    trajectories = [Trajectory(session_id=k) for k in range(4)]
    turn = Turn(prompt_digest=b"", prompt_len_tok=1)
    append_tokens(turn, range(tokens), [0.0] * tokens, [(0, tokens)])
    trajectories[0].turns.append(turn)
    output = AgentLoopOutput(
        prompt_ids=[1],
        response_ids=list(range(tokens)),
        response_mask=[1] * tokens,
        response_logprobs=[0.0] * tokens,
        metrics=AgentLoopMetrics(),
        extra_fields={"reward_extra_info": fields},
    )
    trajectories[0].finish([PackedOutput.pack(output, SampledTokens([turn]))])
    return PromptGroup(uid=uid, prompt={}, drawn_at_step=1, trajectories=trajectories)


@pytest.mark.parametrize(
    ("dynamic", "given_up"), [(True, ["1", "long", "unscored"]), (False, ["1", "2", "long", "room", "unscored"])]
)
def test_given_responses_that_the_options_do_not_fit_any_more_when_loaded_then_their_groups_are_drawn_again(
    run, monkeypatch, dynamic, given_up
):
    """verl's training workers refuse what is longer than their micro batches, and the filter needs its metric."""
    micro = "actor_rollout_ref.actor."
    config = run(f"{micro}use_dynamic_bsz={dynamic}", f"{micro}ppo_max_token_len_per_gpu=100")
    groups = [
        scored("fits", tokens=9, acc=1.0),
        scored("room", tokens=99, acc=1.0),
        scored("long", tokens=100, acc=1.0),
        scored("unscored", tokens=9, score=1.0),
    ]
    valid = [GroupOutcome(prompt_uid=uid, verdict=Verdict.VALID, oldest_version=0, newest_version=0) for uid in "123"]
    carried = [CarriedGroup.of(scored(outcome.prompt_uid, tokens=1, acc=1.0), outcome) for outcome in valid]
    state = PoolState(waiting=(), buffered=tuple(groups), carried=tuple(carried), ledger=Ledger(drawn=7))
    tags = {"1_0_0": stored(101), "1_1_0": stored(4), "2_0_0": stored(100), "3_0_0": stored(4)}
    monkeypatch.setattr(store.tq, "kv_list", lambda partition_id: {partition_id: tags})
    resumed = buffer(run)
    resumed.restore(from_frames(to_frames(RolloutState(pool=state))))
    give_up_unfit(resumed, longest_trained_tok(config))
    assert sorted(resumed.pool.retire(2)) == given_up
    assert resumed.pool.check_ledger()["retired"] == len(given_up)
    assert not resumed.pool.retire(3)


def stored(seq_len: int, *versions: int) -> store.TrajectoryTag:
    """The tag of a trajectory whose tokens are of these policy versions."""
    return store.TrajectoryTag(
        seq_len=seq_len,
        segments=[(version, 1) for version in versions],
        min_global_steps=min(versions, default=0),
        max_global_steps=max(versions, default=0),
        age=0,
    )


@pytest.mark.parametrize(
    ("options", "placement", "given_up"),
    [
        ("rollout_strategy=partial", COLOCATED, []),
        ("rollout_strategy=partial stop_rule=fifo", COLOCATED, []),
        ("rollout_strategy=consistent", COLOCATED, ["mixed", "turns"]),
        ("rollout_strategy=consistent", Placement.SEPARATE, []),
        ("rollout_strategy=discard stop_rule=drain", COLOCATED, ["mixed", "turns"]),
        ("rollout_strategy=discard", COLOCATED, ["mixed", "old", "siblings", "turns"]),
        ("max_staleness=0", COLOCATED, ["mixed", "old", "siblings", "turns"]),
    ],
)
def test_given_surplus_groups_that_this_strategy_keeps_none_of_when_loaded_then_they_are_drawn_again(
    run, monkeypatch, options, placement, given_up
):
    """`partial` continues trajectories under other policies, and keeps what was complete first: short answers."""
    versions = {"old": [(1, 1), (1, 1)], "siblings": [(1, 1), (2, 2)], "mixed": [(1, 2), (2, 2)]}
    tags: dict[str, Any] = {
        f"{uid}_{k}_0": stored(4, *one) for uid, both in versions.items() for k, one in enumerate(both)
    }
    tags["old"] = {"status": "finished"}  # a marker as verl makes them
    tags |= {"turns_0_0": stored(4, 1), "turns_0_1": stored(4, 2)}  # outputs of one trajectory
    valid = [
        GroupOutcome(prompt_uid=uid, verdict=Verdict.VALID, oldest_version=1, newest_version=2)
        for uid in (*versions, "turns")
    ]
    carried = [CarriedGroup.of(scored(one.prompt_uid, tokens=1, acc=1.0), one) for one in valid]
    state = PoolState(waiting=(), buffered=(), carried=tuple(carried), ledger=Ledger(drawn=4))
    monkeypatch.setattr(store.tq, "kv_list", lambda partition_id: {partition_id: tags})
    resumed = buffer(run, *(f"async_dapo.{option}" for option in options.split()), placement=placement)
    resumed.restore(from_frames(to_frames(RolloutState(pool=state))))
    give_up_unfit(resumed, 64)
    assert sorted(resumed.pool.retire(3)) == given_up
    ledger = resumed.pool.check_ledger()
    assert ledger["retired"] == ledger["waiting"] == len(given_up) == 4 - ledger["buffered"]


def test_given_prompts_with_pictures_when_named_again_then_their_words_are_the_same() -> None:
    """A picture that is opened is told from others by where it lies in memory."""
    pictures = [PIL.Image.new("RGB", (8, 8), (k, 0, 0)) for k in range(3)]
    rows = Dataset.from_dict({"prompt": pictures}, features=Features({"prompt": Image()}))
    said = [prompts_in_words(SimpleNamespace(dataframe=rows), "prompt") for _ in range(5)]
    assert len(set(said)) == 1 and "3 prompts" in said[0]


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("saved", [False, True])
def test_given_a_run_that_is_resumed_when_router_replay_was_switched_then_it_is_refused(
    run, tmp_path, monkeypatch, saved, resumed
) -> None:
    """A group of trajectories of which some have routes would lose those of all when it is stored."""
    key = "actor_rollout_ref.rollout.enable_rollout_routing_replay"
    trainer = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
    trainer.config = run(own := f"trainer.default_local_dir={tmp_path}", f"{key}={saved}")
    trainer.replay_buffer, trainer.global_steps, trainer.train_dataset = buffer(run), 4, None
    trainer._checkpoints = KeptCheckpoints.taking_over_from_verl(trainer.config)
    folder = tmp_path / "global_step_4"

    def save_verl_s_part(trainer: PPOTrainer) -> None:
        (folder / "data.pt").write_text("verl's")
        (tmp_path / NEWEST_FILE).write_text("4")

    monkeypatch.setattr(PPOTrainer, "_save_checkpoint", save_verl_s_part)
    trainer._save_checkpoint()
    assert ("has_routes" in (folder / COMPLETE_FILE).read_text()) is saved
    saved_as = read_complete(folder)
    assert saved_as.options == lasting_options(trainer.config) and saved_as.run == trainer._checkpoints.run != ""
    assert (model := saved_as.model) and model.architecture and model == TrainedModel.of(trainer.config)
    refusal = f"^{key}={resumed}: {folder} was saved with {saved}; set that, or begin a new run with its weights"
    with nullcontext() if saved is resumed else pytest.raises(ConfigError, match=refusal):
        check_resume(run(own, f"{key}={resumed}"))


def test_given_a_checkpoint_of_an_extension_that_this_copy_lacks_when_resumed_then_it_is_refused_by_name(run, tmp_path):
    own = f"trainer.default_local_dir={tmp_path}"
    folder = write_checkpoint(tmp_path, 4, extensions=["absent", *declared()])
    refusal = f"^trainer.resume_mode=auto: {folder} was saved with extensions/absent, which this copy lacks; copy that "
    with pytest.raises(ConfigError, match=refusal):
        check_resume(run(own))
    write_checkpoint(tmp_path, 4, extensions=[*declared()])
    check_resume(run(own))


@pytest.mark.parametrize(("ranks", "absent"), [((), []), ((0, 1, 2, 3), []), ((0, 2), [1, 3])])
def test_given_a_folder_of_one_node_when_saved_then_ranks_without_a_model_are_told(tmp_path, ranks, absent):
    folder = write_checkpoint(tmp_path, 4)
    for rank in ranks:
        (folder / "actor" / f"model_world_size_4_rank_{rank}.pt").touch()
    assert absent_ranks(folder) == absent


ACTOR = "actor_rollout_ref.actor"


@pytest.mark.parametrize(
    "changed",
    [
        "actor_rollout_ref.rollout.n=2",
        f"{ACTOR}.optim.lr=1e-7",
        f"{ACTOR}.optim.weight_decay=0",
        f"{ACTOR}.optim.optimizer=SGD",
        f"{ACTOR}.optim.optimizer_impl=torchao.optim",
        f"{ACTOR}.optim.betas=[0.8,0.8]",
        f"++{ACTOR}.optim.override_optimizer_config={{eps:1e-6}}",
        f"{ACTOR}.fsdp_config.fsdp_size=2",
        "data.shuffle=False",
        "data.seed=2",
        f"{ACTOR}.strategy=fsdp",
        "model_engine=megatron",
        "model_engine=veomni",
    ],
)
def test_given_another_n_engine_or_optimizer_when_resumed_then_it_is_refused(run, tmp_path, changed):
    """verl restores the optimizer as it was: another learning rate would be ignored."""
    own = (f"trainer.default_local_dir={tmp_path}", "trainer.n_gpus_per_node=4")
    folder = write_checkpoint(tmp_path, 4, options=json.loads(json.dumps(lasting_options(run(*own)))))
    check_resume(run(*own, "critic.optim.lr=1", "critic.strategy=fsdp2", f"{ACTOR}.fsdp_config.fsdp_size=4"))
    key = changed.partition("=")[0].removeprefix("++")
    with pytest.raises(ConfigError, match=f"^{key}=.*: {folder} was saved with .*; set that, or {ANEW_OF_ITS_OWN}"):
        check_resume(run(*own, changed))


RANK = {"dp": "lora_rank", "megatron": "lora.rank"}


@pytest.mark.parametrize(
    ("engine", "option", "other"),
    [
        ("dp", "lora_alpha", "99"),
        ("dp", "target_modules", "[q_proj]"),
        ("megatron", "lora.type", "dora"),
        ("megatron", "lora.alpha", "99"),
        ("megatron", "lora.target_modules", "[linear_qkv]"),
        ("megatron", "lora.exclude_modules", "[linear_proj]"),
    ],
)
@pytest.mark.parametrize("model", ["actor_rollout_ref.model", "critic.model"])
def test_how_adapters_are_made_lasts_where_there_are_some(run, tmp_path, engine, option, other, model):
    own = (f"trainer.default_local_dir={tmp_path}", f"model_engine={engine}", "algorithm.adv_estimator=gae")
    changed = f"++{model}.{option}={other}"
    for rank, is_refused in ((0, False), (8, True)):
        ranks = f"++{model}.{RANK[engine]}={rank}"
        saved = json.loads(json.dumps(lasting_options(run(*own, ranks))))
        write_checkpoint(tmp_path, 4, options=saved)
        refusal = pytest.raises(ConfigError, match=f"^{re.escape(model)}.{option}=.* was saved with")
        with refusal if is_refused else nullcontext():
            check_resume(run(*own, ranks, changed))
        with pytest.raises(ConfigError, match=f"{RANK[engine]}=16: .* was saved with {rank};"):
            check_resume(run(*own, f"++{model}.{RANK[engine]}=16"))


OTHER = {
    "lr": 2e-3, "lr_warmup_steps_ratio": 0.5, "total_training_steps": 30, "weight_decay": 0.5, "lr_warmup_steps": 7,
    "betas": [0.8, 0.8], "clip_grad": 0.5, "grad_clip": 0.5, "optimizer": "SGD", "min_lr_ratio": 0.3,
    "warmup_style": "constant", "lr_scheduler_type": "constant", "num_cycles": 2.0, "zero_indexed_step": False,
    "override_optimizer_config": {"eps": 1e-5},
}  # fmt: skip


def optimizer_of(changed: dict[str, Any]) -> tuple[Any, Any]:
    """verl's optimizer and scheduler, as FSDP's worker makes them."""
    options = FSDPOptimizerConfig(**{"lr": 1e-3, "lr_scheduler_type": "cosine", "total_training_steps": 20} | changed)
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = build_optimizer([parameter], options)
    return optimizer, FSDPEngine._build_lr_scheduler(SimpleNamespace(optimizer_config=options, rank=1), optimizer)


def trained(optimizer: Any, scheduler: Any, *, steps: int) -> list[Any]:
    """What decides about an update, after each step."""
    seen = []
    for _ in range(steps):
        parameter = optimizer.param_groups[0]["params"][0]
        parameter.grad = torch.ones(2)
        optimizer.step()
        scheduler.step()
        seen.append([{name: value for name, value in group.items() if name not in ("params", "initial_lr")}
                     for group in optimizer.param_groups])  # fmt: skip
    return seen


@pytest.mark.filterwarnings("ignore:`(grad_clip|warmup_style)` is deprecated")
@pytest.mark.parametrize("name", [field.name for field in fields(FSDPOptimizerConfig) if field.name != "optimizer_impl"
                                  and not field.name.startswith("_")])  # fmt: skip
def test_what_a_restored_optimizer_ignores_or_cannot_take_is_what_lasts(run, name):
    """Of all options that verl's optimizer has. That of its module is told by the class that it names."""
    old, new, fresh = (optimizer_of(changed) for changed in ({}, {name: OTHER[name]}, {name: OTHER[name]}))
    trained(*old, steps=3)
    expected = trained(*fresh, steps=6)[3:]
    try:
        for restored, saved in zip(new, old, strict=True):
            restored.load_state_dict(saved.state_dict())
        acts = trained(*new, steps=3) == expected
    except KeyError:  # of an optimizer with another state
        acts = False
    assert (f"{ACTOR}.optim.{name}" in lasting_options(run())) is not acts


def source_of(function: Any) -> str:
    """`inspect.getsource` asks every module for attributes, and torch warns of some."""
    code = function.__code__
    return "".join(inspect.getblock(linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]))


# Options of the data that verl's loader reads -> what becomes of another value at a resume.
OF_THE_LOADER = {
    "lasts": {"shuffle", "seed"},
    "is checked": {"dataloader_num_workers", "train_files", "train_max_samples"},  # by processes, and as `prompts`
    "acts": {"train_batch_size", "gen_batch_size", "val_files", "val_max_samples", "val_batch_size",
             "validation_shuffle"},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_what_a_restored_data_loader_ignores_or_cannot_take_is_what_lasts(run):
    source = source_of(PPOTrainer._init_dataloader) + source_of(create_rl_sampler)
    read = set(re.findall(r"""(?:config\.data|data_config)(?:\.get\(|\[)?[."](\w+)""", source)) - {"get"}
    assert read == set().union(*OF_THE_LOADER.values())

    def loader(**options: Any) -> StatefulDataLoader:
        data = OmegaConf.create({"shuffle": True, "seed": 1, **options})
        return StatefulDataLoader(range(50), batch_size=1, sampler=create_rl_sampler(data, range(50)))

    def drawn(source: StatefulDataLoader, count: int) -> list[int]:
        return [int(one) for one in islice(iter(source), count)]

    begun = loader()
    drawn(begun, 5)
    resumed = loader(seed=2)
    resumed.load_state_dict(begun.state_dict())
    assert drawn(resumed, 5) == drawn(loader(), 10)[5:] != drawn(loader(seed=2), 10)[5:]
    resumed = loader(shuffle=False)
    resumed.load_state_dict(begun.state_dict())
    with pytest.raises(AssertionError):
        drawn(resumed, 1)
    assert {f"data.{name}" for name in OF_THE_LOADER["lasts"]} <= lasting_options(run()).keys()


@pytest.mark.parametrize("lacks", ["model_engine", f"{ACTOR}.strategy", f"{ACTOR}.optim.lr"])
def test_given_a_checkpoint_without_a_note_of_an_option_when_resumed_then_it_is_not_compared(run, tmp_path, lacks):
    own = f"trainer.default_local_dir={tmp_path}"
    megatron = lasting_options(run(own, "model_engine=megatron"))
    write_checkpoint(tmp_path, 4, options={key: value for key, value in megatron.items() if key != lacks})
    check_resume(run(own, "model_engine=megatron", f"{ACTOR}.optim.lr=1e-7"))
    write_checkpoint(tmp_path, 4)  # from before options were noted
    check_resume(run(own, "model_engine=megatron"))


def test_given_another_model_when_resumed_then_one_of_other_shapes_is_refused_and_another_place_is_told(
    run, files, tmp_path, monkeypatch, caplog
):
    """The checkpoint's weights would be trained under the name of the other, compute something else with its rotations,
    or fail to load when engines are up.
    """
    caplog.set_level(logging.INFO, "recipe.async_dapo")
    monkeypatch.setattr(logging.getLogger("recipe.async_dapo"), "propagate", True)  # whatever ran before
    own = f"trainer.default_local_dir={tmp_path}"
    folder = write_checkpoint(tmp_path, 4, model=TrainedModel.of(run()))
    check_resume(run(own))
    assert "was saved of" not in caplog.text
    key, moved = "actor_rollout_ref.model.path", tmp_path / "moved"
    moved.mkdir()
    there = run(own, f"{key}={moved}")
    content = json.loads((files / "model" / "config.json").read_text())
    theta = content["rope_parameters"]["rope_theta"]
    before = {"rope_theta": theta, "rope_parameters": None}
    for changes in ({}, before, {"eos_token_id": 1, "max_position_embeddings": 4096, "num_experts": 0}):
        (moved / "config.json").write_text(json.dumps(content | changes))
        check_resume(there)
        assert f"{key}={moved}: {folder} was saved of {files}/model and goes on with its own" in caplog.text
        caplog.clear()
    (moved / "config.json").write_text(json.dumps(content | {"attention_bias": True}))
    check_resume(there)
    assert f"was saved of {files}/model, whose config.json has attention_bias=False, and not True: see" in caplog.text
    default = {"rope_type": "default", "rope_theta": theta}
    for name, value, changes in (
        ("num_hidden_layers", 7, {"num_hidden_layers": 7}),
        ("head_dim", 99, {"head_dim": 99}),
        ("model_type", "llama", {"model_type": "llama"}),
        ("hidden_act", "gelu", {"hidden_act": "gelu"}),
        ("rms_norm_eps", 0.5, {"rms_norm_eps": 0.5}),
        ("rope_theta", 9, {"rope_parameters": default | {"rope_theta": 9}}),
        ("rope_theta", 9, before | {"rope_theta": 9}),
        ("rope_theta", 9, {"rope_parameters": {"full_attention": default | {"rope_theta": 9}}}),
        ("rope_type", "yarn", {"rope_parameters": default | {"rope_type": "yarn", "factor": 4.0}}),
        ("rope_type", "yarn", before | {"rope_scaling": {"type": "yarn", "factor": 4.0}}),
    ):
        (moved / "config.json").write_text(json.dumps(content | changes))
        was = default | content
        refused = (
            f"^{key}={moved}: {folder} was saved of {files}/model, whose config.json has {name}={was[name]}, "
            f"and not {value}; name that model, or"
        )
        with pytest.raises(ConfigError, match=f"{refused} {ANEW_OF_ITS_OWN}"):
            check_resume(there)
    (moved / "config.json").unlink()
    check_resume(there)  # the check of the model tells it
    write_checkpoint(tmp_path, 4)
    caplog.clear()
    check_resume(there)
    assert not caplog.text, "a checkpoint from before models were noted"


@pytest.mark.parametrize(("named", "left"), [(False, ["16", "24", "6"]), (True, ["16", "24", "4", "6", "8"])])
def test_given_a_damaged_newest_checkpoint_when_resumed_then_older_ones_go_unless_the_user_named_one(
    run, checkpoint, tmp_path, monkeypatch, caplog, named, left
):
    caplog.set_level(logging.INFO, "recipe.async_dapo")
    monkeypatch.setattr(logging.getLogger("recipe.async_dapo"), "propagate", True)  # whatever ran before
    for step, saved_by in ((6, "an earlier run"), (4, "this run"), (8, "this run"), (16, "this run")):
        folder = write_checkpoint(tmp_path, step, frames=checkpoint, run=saved_by)
    (folder / COMPLETE_FILE).unlink()
    by_name = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}/global_step_8"]
    config = run(
        f"trainer.default_local_dir={tmp_path}", "trainer.max_actor_ckpt_to_keep=1", *(by_name if named else [])
    )
    check_resume(config)

    def load_verl_s_part(trainer: PPOTrainer) -> None:
        assert trainer.config.trainer.resume_mode == "resume_path"
        trainer.global_steps = int(trainer.config.trainer.resume_from_path.split("global_step_")[-1])

    monkeypatch.setattr(PPOTrainer, "_load_checkpoint", load_verl_s_part)
    monkeypatch.setattr(store.tq, "kv_list", lambda partition_id: None)
    trainer = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
    trainer.config, trainer.options, trainer.replay_buffer = config, AsyncDAPOConfig.from_hydra(config), buffer(run)
    trainer._checkpoints, trainer.train_dataset = KeptCheckpoints.taking_over_from_verl(config), None
    trainer._load_checkpoint()
    assert f"resumed from {tmp_path}/global_step_8: step 9 is next" in caplog.text
    assert trainer.global_steps == 8 and trainer.replay_buffer.pool.available[ALL].expected_valid(1.0) == 1
    assert (trainer._checkpoints.run == "this run") is not named, "what goes on from a named one is a run of its own"
    trainer._checkpoints.saved(write_checkpoint(tmp_path, 24, frames=checkpoint))
    assert sorted(path.name.removeprefix("global_step_") for path in tmp_path.glob("global_step_*")) == left


NUMBERS = [{"prompt": [{"role": "user", "content": f"{k}+1="}], "answer": k} for k in range(1000)]


@pytest.mark.parametrize(
    ("rows", "warns"),
    [
        (NUMBERS, False),
        ([row | {"answer": 0} for row in NUMBERS], False),
        (NUMBERS[:-1], True),
        (NUMBERS[::-1], True),
        ([{"prompt": "?"}] * len(NUMBERS), True),
        (None, True),  # a class of the user's
    ],
)
def test_given_other_training_data_when_resumed_then_a_line_says_so(
    run, checkpoint, tmp_path, monkeypatch, caplog, rows, warns
):
    """The data loader's place is a number, so prompts of other data would follow unseen."""
    caplog.set_level(logging.INFO, "recipe.async_dapo")
    monkeypatch.setattr(logging.getLogger("recipe.async_dapo"), "propagate", True)  # whatever ran before
    config = run(f"trainer.default_local_dir={tmp_path}")
    of_run = prompts_in_words(SimpleNamespace(dataframe=Dataset.from_list(NUMBERS)), "prompt")
    write_checkpoint(tmp_path, 4, frames=checkpoint, prompts=of_run)
    monkeypatch.setattr(PPOTrainer, "_load_checkpoint", lambda trainer: setattr(trainer, "global_steps", 4))
    monkeypatch.setattr(store.tq, "kv_list", lambda partition_id: None)
    trainer = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
    trainer.config, trainer.replay_buffer = config, buffer(run)
    trainer._checkpoints = KeptCheckpoints.taking_over_from_verl(config)
    trainer.train_dataset = SimpleNamespace(dataframe=Dataset.from_list(rows) if rows else None)
    trainer._load_checkpoint()
    assert (f"and the checkpoint's run had {of_run}" in caplog.text) is warns


def test_given_what_an_extension_has_attached_when_a_copy_without_it_resumes_then_the_tokens_stay_and_go_on_alone(
    run, tmp_path, monkeypatch
):
    """Where it is needed, start-up has refused the checkpoint: this may be a score that was interrupted."""

    attached: Any = SimpleNamespace(
        is_needed=False, is_replayable=True, has_begun=True, to_bytes=lambda: b"of another copy"
    )
    turn = Turn(prompt_digest=b"p", prompt_len_tok=1)
    append_tokens(turn, [5], [-0.5], [(1, 1)])
    interrupted = Trajectory(session_id=0, turns=[turn], attachment=attached)
    others = [Trajectory(session_id=k) for k in (1, 2, 3)]
    group = PromptGroup(uid="a", prompt={}, drawn_at_step=1, trajectories=[interrupted, *others])
    state = PoolState(waiting=(), buffered=(group,), carried=(), ledger=Ledger(drawn=1))
    config = run(f"trainer.default_local_dir={tmp_path}")
    write_checkpoint(tmp_path, 4, frames=list(to_frames(RolloutState(pool=state))))
    monkeypatch.setattr(store.tq, "kv_list", lambda partition_id: None)
    monkeypatch.setattr(saved_state, "of_copy", lambda place: None)
    resumed = buffer(run)
    run_checkpoints.restore_run(resumed, config, step=4, prompts="", is_newest=True)
    assert "agents" not in resumed.state().needed_extensions
    [again] = resumed.pool.buffered
    assert again.trajectories[0].generated_tok == 1 and again.trajectories[0].attachment is None
