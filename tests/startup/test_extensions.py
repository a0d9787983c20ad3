"""A copy of the recipe may lack an extension: its option's value is refused by name, and nothing else changes."""

import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipe.async_dapo.check import main
from recipe.async_dapo.config import extensions
from recipe.async_dapo.config.extensions import SERVED, WITHOUT
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.rollout.codec import codec
from recipe.async_dapo.startup.overrides import option_tree
from recipe.async_dapo.startup.preflight import check_all, findings
from recipe.async_dapo_lab import train
from recipe.async_dapo_lab.gpu_check.families import TinyModel
from recipe.async_dapo_lab.overrides import compose_overrides
from recipe.async_dapo_lab.quickstart import __main__ as quickstart

from ..support.composed_runs import of_options, refusal
from ..support.families import qwen3_vl

FOLDER = extensions.FOLDER
EXAMPLES = Path(__file__).parents[2] / "examples"
VALUES = {  # of options that any value chooses
    "async_dapo.sources": "balanced",
    "async_dapo.drafts": "suffix",
    "async_dapo.host_kv_gib": 1,
    "async_dapo.reward.processes": 4,
    "async_dapo.recorder": "recipe.async_dapo_lab.recorder.LabRecorder",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config": "{method: ngram}",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.speculative-config": "'{}'",
}
MTP = "actor_rollout_ref.model.mtp."
BESIDE = {f"{MTP}enable_rollout": [f"{MTP}enable=True"]}  # without which a value does nothing


@pytest.fixture
def copy_with(monkeypatch, tmp_path) -> Iterator[Callable[..., None]]:
    """Makes this a copy that has these extensions alone."""

    def has(*names: str) -> None:
        for name in names:
            (tmp_path / "extensions" / name).mkdir(parents=True)
            (tmp_path / "extensions" / name / "declared.py").touch()
        monkeypatch.setattr(extensions, "FOLDER", tmp_path / "extensions")
        for found in (extensions.declared, codec, option_tree):
            found.cache_clear()

    yield has
    for found in (extensions.declared, codec, option_tree):
        found.cache_clear()


@pytest.fixture
def bare_copy(copy_with) -> None:
    """Without any extension."""
    copy_with()


@pytest.mark.usefixtures("bare_copy")
def test_the_default_options_are_right_in_a_copy_without_extensions(run):
    assert not of_options(run())


@pytest.mark.usefixtures("bare_copy")
@pytest.mark.parametrize("one", [one for one in SERVED if not one.without], ids=str)
def test_a_value_whose_extension_is_not_in_this_copy_is_refused_by_name(run, one):
    value = one.value or VALUES[one.key]
    config = run(f"++{one.key}={value}", *BESIDE.get(one.key, ()))
    wanted = f"{one.key}={OmegaConf.select(config, one.key)}: extensions/{one.extension} is not in this copy; copy"
    assert [error for error in of_options(config) if error.startswith(wanted)]


@pytest.mark.usefixtures("bare_copy")
def test_a_copy_without_reward_processes_has_the_default_s_functions_run_in_verl_s_workers_and_says_so(run):
    config = run()
    [said] = [one for one in findings(config) if one.name == "async_dapo.reward.processes"]
    assert said.note.startswith(
        "warning: extensions/reward_processes is not in this copy: the reward function runs in "
    )
    reward = AsyncDAPOConfig.from_hydra(config).reward
    assert reward.call_limit_s == reward.timeout_s, "a call that never returns would hold its trajectory for ever"
    assert not [one for one in findings(run("async_dapo.reward.processes=0")) if one.name == said.name]


@pytest.mark.usefixtures("bare_copy")
def test_a_copy_without_the_record_says_what_a_run_leaves_out_unless_none_is_wanted(run):
    key, missing = "async_dapo.report_dir", "extensions/record is not in this copy"
    config = run()
    [said] = [one for one in findings(config) if one.name == key]
    assert said.note == f"warning: {missing}: the run writes no run.json and no steps.jsonl there"
    assert AsyncDAPOConfig.from_hydra(config).extensions == ()
    assert not [one for one in findings(run(f"{key}=null")) if one.name == key]


@pytest.mark.usefixtures("bare_copy")
def test_a_copy_says_what_it_does_without_the_extensions_that_no_option_turns_on(run):
    said = {(one.name, one.note) for one in findings(run())}
    wanted = {
        (about, f"warning: extensions/{name} is not in this copy: {otherwise}")
        for name, (about, otherwise) in WITHOUT.items()
    }
    assert wanted <= said


@pytest.mark.usefixtures("bare_copy")
def test_a_copy_without_further_checks_refuses_what_would_make_a_wrong_run_and_lets_the_rest_pass(run):
    assert not [one for one in findings(run("+trainer.save_freqq=3")) if one.name == "keys" or one.error is not None]
    check_all(run("trainer.logger=[console,wandb]"))  # a key that may be missing
    assert refusal(run, "trainer.critic_warmup=5").startswith("trainer.critic_warmup=5: there is no critic")


@pytest.mark.usefixtures("bare_copy")
def test_a_copy_without_the_command_that_checks_a_run_says_so_by_name(capsys):
    assert main(["data.seed=1"]) == 2
    told = (
        "extensions/checks is not in this copy; copy that folder too, or start the run: it checks what this copy knows"
    )
    assert capsys.readouterr().err == f"async_dapo: {told}\n"


@pytest.mark.usefixtures("bare_copy")
@pytest.mark.parametrize(
    ("command", "otherwise"),
    [
        (train.main, "train without a report: python -m recipe.async_dapo.main_async_dapo"),
        (partial(quickstart.main, ["--steps=1"]), "train with options of your own (docs/get_started.md)"),
    ],
    ids=["train", "quickstart"],
)
def test_commands_of_the_lab_that_need_the_record_say_what_to_do_without(command, otherwise, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = "async_dapo: extensions/record is not in this copy; copy that folder too, or "
    with pytest.raises(SystemExit) as ended:
        command()
    assert str(ended.value) == told + otherwise and not [*tmp_path.iterdir()]


SOME = ["checks", "known_options", "known_values", "reward_processes", "checks reward_processes"]
SOME += ["checks known_options", "known_options known_values", "known_options old_options", "vllm_arguments"]


@pytest.mark.parametrize("names", SOME)
def test_a_copy_with_some_of_the_folders_that_look_at_a_run_finds_what_these_look_for_and_nothing_else(
    run, copy_with, names
):
    if not all((FOLDER / name).exists() for name in names.split()):
        pytest.skip("this copy lacks one of them")
    copy_with(*names.split())
    assert [one.error for one in findings(run()) if one.error is not None] == []
    wrong = {
        "trainer.critic_warmup=5": "",
        "actor_rollout_ref.rollout.load_format=dumy": "vllm_arguments",
        "data.truncation=left": "known_options old_options",
        "algorithm.adv_estimator=grop": "known_values",
        "data.train_files=/nowhere.parquet": "checks",
        "reward.custom_reward_function.path=/nowhere.py": "checks reward_processes",
    }
    found = [str(one.error) for one in findings(run(*wrong)) if one.error is not None]
    wanted = [option for option, needed in wrong.items() if set(needed.split()) <= set(names.split())]
    assert sorted(error.partition(": ")[0] for error in found) == sorted(wanted)


@pytest.mark.usefixtures("bare_copy")
def test_what_hydra_refuses_is_told_in_its_words_by_a_copy_that_knows_no_more(run):
    with pytest.raises(ConfigError, match=r"^overrides=<refused>: Hydra says: .*'trainer\.loger'"):
        compose_overrides(["trainer.loger=x"])


@pytest.mark.usefixtures("bare_copy")
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")  # of processors
def test_a_copy_without_pictures_refuses_by_name_a_model_that_is_shown_them(run, tmp_path):
    assets = TinyModel(make=qwen3_vl, has_pictures=True).write(tmp_path)
    data = (f"data.train_files={assets.train_file}", f"data.val_files={assets.validation_file}")
    told = "extensions/pictures is not in this copy; copy that folder too, or take prompts and a model of text"
    model = f"actor_rollout_ref.model.path={assets.model}"
    assert refusal(run, model, *data) == f"{model}: a qwen3_vl is trained as a model of pictures: {told}"


@pytest.mark.parametrize("missing", ["agents", "tools"])
def test_a_copy_without_agents_or_tools_refuses_tools(run, copy_with, missing):
    if missing == "tools" and not (FOLDER / "agents").exists():
        pytest.skip("this copy lacks both")
    copy_with(*(["agents"] if missing == "tools" else []))
    tools = f"actor_rollout_ref.rollout.multi_turn.function_tool_path={EXAMPLES / 'tools' / 'tools.py'}"
    told = f"extensions/{missing} is not in this copy; copy that folder too, or leave tools out"
    assert refusal(run, tools) == f"{tools}: {told}"
    tried = "async_dapo.calls.check={'add': {'first': 1}}"
    assert refusal(run, "async_dapo.calls.check={add:{first:1}}") == f"{tried}: {told}"


def test_a_folder_whose_extension_stands_on_a_missing_one_is_as_missing_and_that_one_is_named(run, copy_with):
    standing = {name: one.stands_on for name, one in extensions.declared().items() if one.stands_on}
    bottoms = set(standing.values()) - standing.keys()
    copy_with(*standing)
    assert not extensions.declared()
    assert not of_options(run()), "no start loads them"
    told = {extensions.not_here(name) for name in standing}
    assert told == {f"extensions/{name} is not in this copy" for name in bottoms}


def test_extensions_import_those_that_they_stand_on_and_no_others():
    """Each arrow that `lint-imports` lets pass."""
    config = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    contracts = {one["name"]: one for one in config["tool"]["importlinter"]["contracts"]}
    for arrow in contracts["Extensions do not import each other"]["ignore_imports"]:
        importer, imported = (name.removeprefix(f"{extensions.PACKAGE}.").split(".")[0] for name in arrow.split(" -> "))
        if (FOLDER / importer).exists():
            below = extensions.load(importer, "declared.DECLARED").stands_on
            while below != imported:
                assert below, arrow
                below = extensions.load(below, "declared.DECLARED").stands_on


STATEFUL = """
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, register

class Loop(AgentLoopBase):
    {state}

    async def run(self, sampling_params, **kwargs):
        raise NotImplementedError
"""


@pytest.mark.parametrize("state", ["keeps_state = True", "replayable = False", "keeps_state = False"])
@pytest.mark.parametrize("by", ["file", "library"])
@pytest.mark.skipif(not (FOLDER / "checks").exists(), reason="this copy refuses such a loop when it is made")
def test_a_copy_without_agents_refuses_loops_with_a_state_and_warns_of_others(
    run, copy_with, tmp_path, monkeypatch, by, state
):
    copy_with("checks")
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"{by}_with_{state.replace(' = ', '_')}"
    registers = f"\n\nregister('{name}')(Loop)\n" if by == "library" else ""
    (tmp_path / f"{name}.py").write_text(STATEFUL.format(state=state) + registers)
    (tmp_path / "loops.yaml").write_text(f"- name: {name}\n  _target_: {name}.Loop\n")
    loop, agent = "actor_rollout_ref.rollout.agent.default_agent_loop", "actor_rollout_ref.rollout.agent."
    named = f"{agent}agent_loop_config_path={tmp_path}/loops.yaml"
    named = named if by == "file" else f"actor_rollout_ref.model.external_lib={name}"
    [found] = [one for one in findings(run(f"{loop}={name}", named)) if one.name == "agent loop and tools"]
    if state == "keeps_state = False":
        assert found.error is None and f"{name}: a call that it records is made again" in found.note
    else:
        blamed = loop if by == "library" else f"{agent}agent_loop_config_path, `_target_` of {name}"
        told = "extensions/agents is not in this copy; copy that folder too, or choose another class"
        assert str(found.error) == f"{blamed}=Loop: its loops keep a state over the stop: {told}"
