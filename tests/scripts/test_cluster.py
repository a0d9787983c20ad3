"""Examples for clusters: what the Slurm script starts, with stand-ins for Slurm; the RayJob's parts fit each other; the
page's commands, word for word."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ray.scripts.scripts import start

from ..support.documents import page

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "examples" / "cluster"
STUBS = {
    "scontrol": "echo localhost; echo other",
    "srun": 'printf "%s\\n" "$@" "at $RAY_ADDRESS" "token $RAY_AUTH_MODE $RAY_AUTH_TOKEN" "nodes $NNODES in $PWD"',
}
ON_THE_PAGE = {
    "sbatch": (
        'while [ "${1#--nodes=}" = "$1" ]; do shift; done; '
        'SLURM_JOB_NUM_NODES=${1#--nodes=}; export SLURM_JOB_NUM_NODES; shift; exec bash "$@"'
    ),
    "python": 'echo "at $RAY_ADDRESS"; printf "%s\\n" "$@"',
    "python3": 'exec python "$@"',
}
SLURM = {"SLURM_JOB_ID": "123456", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[1-2]"}
NEEDED = {"DATA_HOME": "/shared/data", "CKPTS_DIR": "/shared/checkpoints"}


def run(tmp_path: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """With stand-ins, as on the first of two nodes of a Slurm job."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name, program in (STUBS | ON_THE_PAGE).items():
        (folder / name).write_text(f"#!/bin/sh\n{program}\n")
        (folder / name).chmod(0o755)
    return subprocess.run(
        command,
        cwd=ROOT,
        env={
            "PATH": f"{folder}:{os.environ['PATH']}",
            "VENV": str(folder.parent),
            "SLURM_SUBMIT_DIR": str(tmp_path),
            **SLURM,
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=300,
    )


def submit(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(tmp_path, "bash", str(CLUSTER / "slurm.sh"), *arguments, **environment)


def test_given_an_allocation_when_submitted_then_ray_starts_on_every_node_and_the_script_on_the_first(tmp_path) -> None:
    done = submit(tmp_path, "trainer.total_epochs=1", **NEEDED)
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    started, entry = words[: words.index("--")], words[words.index("--") + 1 :]
    assert started[0] == "--ntasks=2" and "--cpu-bind=none" in started and "symmetric-run" in started
    assert started[started.index("--address") + 1] == "127.0.0.1:23456"
    assert started[started.index("--min-nodes") + 1] == "2"
    assert "--temp-dir=/tmp/ray-123456" in started
    script = "recipe/async_dapo/test_qwen3_8b.sh"
    assert entry[:3] == ["bash", f"{tmp_path}/{script}", "trainer.total_epochs=1"]
    assert "at 127.0.0.1:23456" in words, "who counts the nodes would not find Ray in a --temp-dir of its own"
    assert (ROOT / script).is_file() and words[-1] == f"nodes 2 in {ROOT}", "where it is called"
    for repository, train in ((str(ROOT), f"{ROOT}/mine.sh"), ("/other", f"{ROOT}/mine.sh"), ("/other", "mine.sh")):
        words = submit(tmp_path, **NEEDED, REPOSITORY=repository, TRAIN=train).stdout.splitlines()
        assert words[words.index("--") + 2] == (train if train.startswith("/") else f"{repository}/{train}")


def test_every_option_of_rays_start_is_one_that_the_other_nodes_take(tmp_path) -> None:
    """They get the same ones as the first."""
    words = submit(tmp_path, **NEEDED).stdout.splitlines()
    options = {word.partition("=")[0] for word in words[words.index("symmetric-run") : words.index("--")]}
    of_the_first_alone = inspect.getsource(start.callback).partition("head_only_flags = {")[2].partition("}")[0]
    assert "--port" in of_the_first_alone and "--temp-dir" in options
    assert not [option for option in options if f'"{option}"' in of_the_first_alone]


def test_given_two_jobs_when_submitted_then_each_has_a_token_of_its_own(tmp_path) -> None:
    tokens = {submit(tmp_path, **NEEDED).stdout.splitlines()[-2] for _ in range(2)}
    assert len(tokens) == 2 and all(re.fullmatch(r"token token [0-9a-f]{64}", token) for token in tokens)


@pytest.mark.parametrize("variable", ["VENV", "VIRTUAL_ENV", "CONDA_PREFIX"])
def test_given_a_venv_or_an_environment_of_conda_when_submitted_then_the_job_has_it(tmp_path, variable) -> None:
    environment = tmp_path / "gpu_env"
    (environment / "bin").mkdir(parents=True)
    others = {"VENV": "", "VIRTUAL_ENV": "", "CONDA_PREFIX": ""}
    refused = submit(tmp_path, **NEEDED, **others | {variable: str(environment)})
    assert refused.returncode != 0 and f"slurm.sh: {environment} is no Python environment" in refused.stderr
    (environment / "bin" / "python3").symlink_to(sys.executable)
    (environment / "bin" / "srun").write_text("#!/bin/sh\necho started in its environment\n")
    (environment / "bin" / "srun").chmod(0o755)
    done = submit(tmp_path, **NEEDED, **others | {variable: str(environment)})
    assert done.stdout == "started in its environment\n", done.stderr
    none = submit(tmp_path, **NEEDED, **others)
    assert none.returncode != 0 and "set VENV to the Python environment" in none.stderr


@pytest.mark.parametrize("missing", sorted(NEEDED))
def test_given_no_folder_when_submitted_then_the_message_names_the_variable(tmp_path, missing: str) -> None:
    done = submit(tmp_path, **{name: value for name, value in NEEDED.items() if name != missing})
    assert done.returncode != 0 and f"set {missing} to" in done.stderr


def test_given_data_files_of_the_users_own_when_submitted_then_no_folder_of_data_is_asked_for(tmp_path) -> None:
    files = ("data.train_files=/shared/a.parquet", "data.val_files=/shared/b.parquet")
    assert submit(tmp_path, *files, CKPTS_DIR="/shared/checkpoints").returncode == 0
    refused = submit(tmp_path, files[0], CKPTS_DIR="/shared/checkpoints")
    assert refused.returncode != 0 and "set DATA_HOME to" in refused.stderr


def test_given_the_rayjob_when_read_then_its_parts_fit_each_other_and_the_reference_script() -> None:
    job = yaml.safe_load((CLUSTER / "rayjob.yaml").read_text())
    spec = job["spec"]
    cluster, variables = spec["rayClusterSpec"], yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]
    [workers] = cluster["workerGroupSpecs"]
    assert int(variables["NNODES"]) == 1 + workers["replicas"]
    script = spec["entrypoint"].removeprefix("bash /shared/async_dapo/")
    per_node = re.search(r"trainer\.n_gpus_per_node=(\d+)", (ROOT / script).with_name("dapo_on_math.sh").read_text())[1]
    for group in (cluster["headGroupSpec"], workers):
        [container] = group["template"]["spec"]["containers"]
        assert group["rayStartParams"]["num-gpus"] == container["resources"]["limits"]["nvidia.com/gpu"] == per_node
        assert not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} & {one["name"] for one in container["env"]}, "KubeRay sets them"
        mounted = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        volumes = {one["name"]: one for one in group["template"]["spec"]["volumes"]}
        assert volumes[mounted["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
        assert all(path.startswith("/shared") for name, path in variables.items() if name in NEEDED)
    locked = re.search(r"^ray==(\S+)", (ROOT / "requirements" / "cpu.txt").read_text(), re.MULTILINE)[1]
    assert cluster["rayVersion"] == locked
    assert cluster["authOptions"] == {"mode": "token"}, "the submitter and the operator get a token from here only"


def test_given_the_page_when_its_commands_are_run_word_for_word_then_each_starts_what_it_is_to_start(tmp_path) -> None:
    (tmp_path / "shared" / "data").mkdir(parents=True)
    said = []
    for block in page("docs/cluster.md").code_blocks:
        done = run(tmp_path, "bash", "-euo", "pipefail", "-c", block.replace("/shared", f"{tmp_path}/shared"))
        assert done.returncode == 0, block + done.stderr
        said.append(done.stdout.splitlines())
    check, reference, own, slurm = said
    assert check[1:] == ["-m", "recipe.async_dapo_lab.gpu_check", "--gpus", "8"]
    assert reference[:4] == ["at HEAD:6379", "-P", "-m", "recipe.async_dapo_lab.train"]
    assert own[:3] == ["at HEAD:6379", "-m", "recipe.async_dapo_lab.train"]
    assert {"trainer.nnodes=4", "trainer.n_gpus_per_node=8"} <= set(reference) & set(own)
    assert f"actor_rollout_ref.model.path='{tmp_path}/shared/Qwen3-8B-Base'" in reference
    assert f"trainer.default_local_dir='{tmp_path}/shared/checkpoints/qwen3-8b-base'" in reference
    assert slurm[0] == "--ntasks=4" and slurm[-1] == f"nodes 4 in {ROOT}"
    starts = [shlex.split(code)[2:] for code in page("docs/cluster.md").code if code.startswith("ray start ")]
    parsed = [start.make_context("ray start", words).params for words in starts]
    assert [one["head"] for one in parsed] == [True, False] and parsed[1]["address"] == "HEAD:6379"
