"""A second Ray node that starts in an empty folder, without this repository: it gets everything through Ray.

Both nodes ask for a token, so nobody else gets anything.
The strategy is `consistent`: what is under way when a step has enough is finished, on both nodes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.async_dapo_lab.quickstart.activation import PLUGIN_PATH
from recipe.async_dapo_lab.quickstart.model_and_data import Assets
from recipe.async_dapo_lab.quickstart.overrides import PROMPTS_PER_STEP

from ..support.composed_runs import rows, write_model, write_parquet
from ..support.doors import files_with
from ..support.harness import ROOT, Run, ledger_closes
from ..support.ray_nodes import RAY_ENVIRONMENT, TOKEN, training_on, two_nodes

STEPS = 4
STRANGERS = {"nothing": {"RAY_AUTH_MODE": "disabled"}, "another token": {"RAY_AUTH_TOKEN": "f" * 64}}
STRANGER_S = 120  # longest time until it is refused

# Each process that loads it leaves a note: where it runs, and which files it has its code from.
WITNESS = """
import json, os, sys

def leave_note(role):
    note = {{"role": role, "folder": os.getcwd(), "file": __file__, "path": sys.path}}
    note["recipe"] = getattr(sys.modules.get("recipe.async_dapo.rollout.worker"), "__file__", None)
    with open(f"{notes}/{{role}}-{{os.getpid()}}.json", "w") as file:
        json.dump(note, file)
"""
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    leave_note("reward")
    score = float(sum(map(ord, solution_str)) % 2)  # half of the answers are right: most groups are valid
    return {{"score": score, "acc": score}}
"""
AGENT_LOOP = """
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

class WitnessedLoop(SingleTurnAgentLoop):
    async def run(self, *args, **kwargs):
        leave_note("agent_loop")
        return await super().run(*args, **kwargs)
"""
AGENT_LOOPS = """
- name: witnessed_loop
  _target_: my_loops.WitnessedLoop
"""

PLUGIN = sorted(PLUGIN_PATH.glob("async_dapo_cpu*"))  # which the nodes do not have
OVERRIDES = (
    "actor_rollout_ref.rollout.agent.num_workers=2",
    "async_dapo.rollout_pool_size=32",
    "reward.num_workers=2",
    "reward.custom_reward_function.path=my_reward.py",
    "actor_rollout_ref.rollout.agent.agent_loop_config_path=loops.yaml",
    "actor_rollout_ref.rollout.agent.default_agent_loop=witnessed_loop",
    f"+ray_kwargs.ray_init.runtime_env.py_modules=[{','.join(map(str, ('modules/my_loops', *PLUGIN)))}]",
    "data.max_response_length=64",
)


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Assets:
    """An untrained model: what it answers does not matter here."""
    assets = Assets(folder=tmp_path_factory.mktemp("untrained"))
    write_model(assets.model)
    write_parquet(assets.train_file, rows(64))
    write_parquet(assets.validation_file, rows(8))
    return assets


@pytest.fixture(scope="module")
def run(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("nodes")
    (folder / "notes").mkdir()
    driver = folder / "driver"
    driver.mkdir()
    (driver / "my_reward.py").write_text((WITNESS + REWARD).format(notes=folder / "notes"))
    my_loops = driver / "modules" / "my_loops"
    my_loops.mkdir(parents=True)
    (my_loops / "__init__.py").write_text((WITNESS + AGENT_LOOP).format(notes=folder / "notes"))
    (driver / "loops.yaml").write_text(AGENT_LOOPS)
    with (
        two_nodes(folder, gpus=(1, 0)) as nodes,
        training_on(
            nodes,
            assets,
            driver,
            module="recipe.async_dapo.main_async_dapo",
            steps=STEPS,
            strategy="consistent",
            overrides=OVERRIDES,
        ) as exit_code,
    ):
        strangers = {name: join_as_stranger(nodes.address, has) for name, has in STRANGERS.items()}
        told = files_with([TOKEN], folder, nodes.ray_folder)
    (folder / "strangers.json").write_text(json.dumps(strangers))
    (folder / "told.json").write_text(json.dumps(told))
    run = Run(folder=driver, exit_code=exit_code)
    assert exit_code == 0, run.log_tail
    return run


def join_as_stranger(address: str, has: dict[str, str]) -> tuple[int, str]:
    """Exit code and last words of a driver that joins the cluster."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys, ray; ray.init(sys.argv[1]); ray.get(ray.put(1))", address],
        env=os.environ | RAY_ENVIRONMENT | has,
        capture_output=True,
        text=True,
        timeout=STRANGER_S,
    )
    return done.returncode, done.stderr[-2000:]


def notes(run: Run, role: str, node: str) -> list[dict]:
    """What the processes of that role on that node have left."""
    every = [json.loads(path.read_text()) for path in (run.folder.parent / "notes").glob(f"{role}-*.json")]
    return [note for note in every if Path(note["folder"]) == run.folder.parent / node]


def test_given_a_second_node_when_trained_then_all_steps_are_done(run):
    assert len(run.steps) == STEPS


@pytest.mark.parametrize("node", ["head", "second"])
def test_given_a_second_node_when_trained_then_trajectories_run_on_both_with_shipped_code(run, node):
    [note] = notes(run, "agent_loop", node)
    for file in (note["recipe"], note["file"]):
        assert "py_modules_files" in Path(file).parts, "not from Ray's runtime environment"
    places = [
        Path(place) for place in note["path"] if not Path(place).is_relative_to(sys.prefix)
    ]  # .venv may lie in it
    assert not [place for place in places if place.is_relative_to(ROOT)], "the repository could be imported"


@pytest.mark.parametrize("node", ["head", "second"])
def test_given_a_reward_function_in_a_file_when_trained_then_it_is_computed_on_both_nodes(run, node):
    found = notes(run, "reward", node)  # of two processes, where one call took more than a second
    assert found and all("py_modules_files" in Path(note["file"]).parts for note in found)


def test_given_relative_output_folders_when_trained_then_they_are_the_drivers(run):
    assert (run.folder / "metrics.jsonl").exists()
    assert not (run.folder.parent / "second" / "outputs").exists()


@pytest.mark.parametrize("has", STRANGERS)
def test_given_a_cluster_with_a_token_when_a_driver_has_none_or_another_then_it_is_refused(run, has):
    exit_code, words = json.loads((run.folder.parent / "strangers.json").read_text())[has]
    assert exit_code != 0 and "auth" in words.lower(), words


def test_given_a_cluster_with_a_token_when_trained_then_no_file_of_the_run_and_no_log_of_ray_holds_it(run):
    assert json.loads((run.folder.parent / "told.json").read_text()) == []


def test_given_consistent_rollout_when_it_trains_then_every_trajectory_ends_in_the_round_that_began_it(run):
    for metric in ("early_stop/interrupted_groups", "partial/resumed_groups", "age/max", "tokens/discarded"):
        assert set(run.metric(f"async_dapo/{metric}")) == {0.0}, metric
    assert max(run.metric("response_length/max")) > min(run.metric("response_length/min")), "all are of one length"


def test_given_consistent_rollout_when_it_trains_then_the_ledger_closes(run):
    assert all(map(ledger_closes, run.steps))
    assert run.steps[-1]["async_dapo/ledger/trained"] == STEPS * PROMPTS_PER_STEP
