"""A second Ray node that starts in an empty folder, without this repository: it gets everything through Ray.

What trains are the examples of data, reward, agent loop and tool, with the options of their own commands, in a folder
that holds them and nothing else. Both nodes ask for a token, so nobody else gets anything. The strategy is
`consistent`: what is under way when a step has enough is finished, on both nodes. Its processes are forks of the tests'
server, which Ray starts as it would start them itself; with --nightly they are what users have, too.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from recipe.async_dapo_lab.quickstart.activation import PLUGIN_PATH
from recipe.async_dapo_lab.quickstart.model_and_data import Assets
from recipe.async_dapo_lab.quickstart.overrides import PROMPTS_PER_STEP

from ..support.doors import files_with
from ..support.harness import ROOT, Run, ledger_closes, overrides_of
from ..support.ray_nodes import RAY_ENVIRONMENT, TOKEN, training_on, two_nodes

STEPS = 2
STRANGERS = {"nothing": {"RAY_AUTH_MODE": "disabled"}, "another token": {"RAY_AUTH_TOKEN": "f" * 64}}
STRANGER_S = 600  # longest time until it is refused

# Each process that runs it leaves a note: where it runs, and which files it has its code from.
WITNESS = """
import json, os, sys

def leave_note(role):
    note = {{"role": role, "folder": os.getcwd(), "file": __file__, "path": sys.path}}
    note["recipe"] = getattr(sys.modules.get("recipe.async_dapo.rollout.worker"), "__file__", None)
    with open(f"{notes}/{{role}}-{{os.getpid()}}.json", "w") as file:
        json.dump(note, file)
"""
WITNESSED = {  # the file of an example, and the line before which it leaves a note
    "reward": ("reward/reward.py", "    said, true = "),
    "agent_loop": ("agent_loop/checked_answer.py", "        dialogue = Dialogue("),
    "tool": ("tools/tools.py", "    return str("),
}
EXAMPLES = ("tools", "agent_loop", "data_set", "reward")  # of an option that two of them set, the last one's counts
LOOPS = ("checked_answer", "working_tool_agent")  # of every second prompt
MODULE = "modules/examples"  # workers would find it without Ray at the top of the driver's folder
PLUGIN = sorted(PLUGIN_PATH.glob("async_dapo_cpu*"))  # which the nodes do not have
OVERRIDES = (
    "actor_rollout_ref.rollout.agent.num_workers=2",
    "async_dapo.rollout_pool_size=64",  # eight groups at once: each worker soon has some of either loop
    "reward.num_workers=2",
    "actor_rollout_ref.rollout.agent.agent_loop_config_path=loops.yaml",
    f"+ray_kwargs.ray_init.runtime_env.py_modules=[{','.join(map(str, (MODULE, *PLUGIN)))}]",
    "data.max_response_length=112",
)


def write_examples(driver: Path, notes: Path) -> None:
    """The examples as their commands have them, with witnesses, and both agent loops in one file."""
    examples = Path(shutil.copytree(ROOT / "examples", driver / MODULE, ignore=shutil.ignore_patterns("__pycache__")))
    for role, (name, line) in WITNESSED.items():
        text = (examples / name).read_text()
        assert text.count(line) == 1
        indent = line[: -len(line.lstrip())]
        text = text.replace(line, f'{indent}leave_note("{role}")\n{line}')
        (examples / name).write_text(WITNESS.format(notes=notes) + text)
    loops = [(examples / folder / "agent_loops.yaml").read_text() for folder in ("agent_loop", "tools")]
    (driver / "loops.yaml").write_text("".join(loops))
    subprocess.run([sys.executable, examples / "data_set" / "make_data.py", driver / "outputs" / "sums"], check=True)
    file = driver / "outputs" / "sums" / "train.parquet"
    prompts = pd.read_parquet(file)
    prompts["agent_name"] = [LOOPS[number % 2] for number in range(len(prompts))]
    prompts.to_parquet(file)


@pytest.fixture(scope="module", params=["forked", pytest.param("started", marks=pytest.mark.nightly)])
def run(request: pytest.FixtureRequest, assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("nodes")
    (folder / "notes").mkdir()
    driver = folder / "driver"
    write_examples(driver, folder / "notes")
    words = [word for example in EXAMPLES for word in overrides_of(example)]
    with (
        two_nodes(folder, gpus=(1, 0)) as nodes,
        training_on(
            nodes,
            assets,
            driver,
            module="recipe.async_dapo.main_async_dapo",
            steps=STEPS,
            strategy="consistent",
            overrides=[*(word.replace(f"{ROOT}/examples/", f"{MODULE}/") for word in words), *OVERRIDES],
            forked=request.param == "forked",
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
@pytest.mark.parametrize("role", ["reward", "tool"])
def test_given_a_function_in_a_file_when_trained_then_it_is_called_on_both_nodes(run, role, node):
    found = notes(run, role, node)  # rewards of two processes, where one call took more than a second
    assert found and all("py_modules_files" in Path(note["file"]).parts for note in found)


def test_given_the_examples_of_data_reward_loop_and_tool_when_trained_then_they_act(run):
    assert sum(run.metric("async_dapo/failure/groups")) == 0
    assert all(0 < reward < 1 for reward in run.metric("critic/score/mean"))
    assert all(turns > 2 for turns in run.metric("num_turns/mean")), "no second turn"


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
