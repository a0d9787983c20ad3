"""Examples for clusters: what the Slurm script starts, with stand-ins for Slurm; the RayJob's parts fit each other."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "examples" / "cluster"
STUBS = {
    "scontrol": "echo localhost; echo other",
    "srun": 'printf "%s\\n" "$@"; echo "token $RAY_AUTH_MODE $RAY_AUTH_TOKEN"; echo "nodes $NNODES in $PWD"',
}
NEEDED = {"DATA_HOME": "/shared/data", "CKPTS_DIR": "/shared/checkpoints"}


def submit(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As Slurm runs it on the first of two nodes."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name, program in STUBS.items():
        (folder / name).write_text(f"#!/bin/sh\n{program}\n")
        (folder / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "123456", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[1-2]"}
    return subprocess.run(
        ["bash", str(CLUSTER / "slurm.sh"), *arguments],
        env={"PATH": os.environ["PATH"], "SLURM_SUBMIT_DIR": str(tmp_path), **slurm, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_given_an_allocation_when_submitted_then_ray_starts_on_every_node_and_the_script_on_the_first(tmp_path) -> None:
    done = submit(tmp_path, "trainer.total_epochs=1", **NEEDED)
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    started, entry = words[: words.index("--")], words[words.index("--") + 1 :]
    assert started[0] == "--ntasks=2" and "symmetric-run" in started
    assert started[started.index("--address") + 1] == "127.0.0.1:23456"
    assert started[started.index("--min-nodes") + 1] == "2"
    assert "--temp-dir=/tmp/ray-123456" in started
    script = "recipe/async_dapo/test_qwen3_8b.sh"
    assert entry[:5] == ["env", "RAY_ADDRESS=127.0.0.1:23456", "bash", script, "trainer.total_epochs=1"]
    assert (ROOT / script).is_file() and words[-1] == f"nodes 2 in {tmp_path}"


def test_given_two_jobs_when_submitted_then_each_has_a_token_of_its_own(tmp_path) -> None:
    tokens = {submit(tmp_path, **NEEDED).stdout.splitlines()[-2] for _ in range(2)}
    assert len(tokens) == 2 and all(re.fullmatch(r"token token [0-9a-f]{64}", token) for token in tokens)


@pytest.mark.parametrize("missing", sorted(NEEDED))
def test_given_no_folder_when_submitted_then_the_message_names_the_variable(tmp_path, missing: str) -> None:
    done = submit(tmp_path, **{name: value for name, value in NEEDED.items() if name != missing})
    assert done.returncode != 0 and f"set {missing} to" in done.stderr


def test_given_the_rayjob_when_read_then_its_parts_fit_each_other_and_the_reference_script() -> None:
    job = yaml.safe_load((CLUSTER / "rayjob.yaml").read_text())
    spec = job["spec"]
    cluster, variables = spec["rayClusterSpec"], yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]
    [workers] = cluster["workerGroupSpecs"]
    assert int(variables["NNODES"]) == 1 + workers["replicas"]
    script = spec["entrypoint"].removeprefix("bash /shared/async_dapo/")
    per_node = re.search(r"trainer\.n_gpus_per_node=(\d+)", (ROOT / script).read_text())[1]
    for group in (cluster["headGroupSpec"], workers):
        [container] = group["template"]["spec"]["containers"]
        assert group["rayStartParams"]["num-gpus"] == container["resources"]["limits"]["nvidia.com/gpu"] == per_node
        assert {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"} <= {one["name"] for one in container["env"]}
        mounted = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        volumes = {one["name"]: one for one in group["template"]["spec"]["volumes"]}
        assert volumes[mounted["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
        assert all(path.startswith("/shared") for name, path in variables.items() if name in NEEDED)
    locked = re.search(r"^ray==(\S+)", (ROOT / "requirements" / "cpu.txt").read_text(), re.MULTILINE)[1]
    assert cluster["rayVersion"] == locked
