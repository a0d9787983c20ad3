"""A driver that `ray job submit` has started, whose job has a runtime environment of its own.

Nightly: how both environments become one is in `tests/extensions/shipping/startup/test_shipping.py`, and
`tests/e2e/test_two_nodes.py` trains with code that Ray has shipped.
"""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.two_nodes import start_node
from recipe.async_dapo_lab.own_ray import OWN_RAY_ENVIRONMENT
from recipe.async_dapo_lab.quickstart.supervision import RayFolder

from ..support.composed_runs import valid_overrides, write_files
from ..support.doors import free_ports
from ..support.ray_nodes import RAY, RAY_ENVIRONMENT

ROOT = Path(__file__).parents[2]
JOB_S = 900  # longest time that it takes

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2 * JOB_S)]

# What the recipe's entry does between its checks and the first actor. Only the driver can import from the repository.
DRIVER = """
import sys
sys.path[:0] = [{root!r}, {root!r} + "/recipe/async_dapo_lab/cpu/plugin"]
import ray
from recipe.async_dapo.runtime.node_start import run_on_ray
from tests.support.composed_runs import compose_run

def runner(folder):
    class Runner:
        def run(self, config):
            import json, os
            import recipe.async_dapo.config as module, their_module
            seen = dict(
                recipe=module.__file__, theirs=their_module.__file__, hook=their_module.hooked,
                environment=dict(os.environ),
            )
            with open(os.path.join(folder, "seen.json"), "w") as file:
                json.dump(seen, file)
    return ray.remote(Runner)

run_on_ray(compose_run(sys.argv[2:]), runner(sys.argv[1]))
"""
JOB_ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",  # shipped by the recipe
    "HF_HUB_OFFLINE": "1",
    "VERL_DATAPROTO_SERIALIZATION_METHOD": "theirs",  # a default of the recipe
    "VERL_FULL_DETERMINISM": "0",  # set by verl itself
    "TRANSFER_QUEUE_ENABLE": "1",
    "WANDB_API_KEY": "kept-secret",
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, dict[str, Any]]:
    """Exit code, output, and what the first actor of the run has seen."""
    folder = tmp_path_factory.mktemp("job")
    files = write_files(folder / "files")
    (folder / "work").mkdir()
    (folder / "work" / "driver.py").write_text(DRIVER.format(root=str(ROOT)))
    module = folder / "their_module"
    module.mkdir()
    (module / "__init__.py").write_text("hooked = False\n\ndef hook():\n    global hooked\n    hooked = True\n")
    runtime_env = {
        "working_dir": str(folder / "work"),
        "py_modules": [str(module)],
        "worker_process_setup_hook": "their_module.hook",
        "env_vars": JOB_ENVIRONMENT,
    }
    hidden = ("PYTHONPATH", "VERL_PLATFORM", "RAY_ADDRESS")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= OWN_RAY_ENVIRONMENT | RAY_ENVIRONMENT
    head = [RAY, "start", "--block", "--head", "--node-ip-address=127.0.0.1", "--port=0", "--num-cpus=4"]
    head += ["--include-dashboard=true", "--dashboard-host=127.0.0.1"]
    dashboard, agent = free_ports(2)
    head += [
        f"--dashboard-port={dashboard}",
        f"--dashboard-agent-listen-port={agent}",
        "--object-store-memory=100000000",
    ]
    with ExitStack() as stack:
        command = [*map(str, head), f"--temp-dir={stack.enter_context(RayFolder()).path}"]
        start_node(stack, command, environment=environment, log=folder / "head.log")
        submit = [str(RAY), "job", "submit", f"--address=http://127.0.0.1:{dashboard}"]
        submit += [f"--runtime-env-json={json.dumps(runtime_env)}"]
        done = subprocess.run(
            [*submit, "--", sys.executable, "driver.py", str(folder), *valid_overrides(files)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=JOB_S,
        )
    seen = folder / "seen.json"
    return done.returncode, done.stdout + done.stderr, json.loads(seen.read_text()) if seen.exists() else {}


def test_given_a_job_with_a_runtime_environment_when_it_is_submitted_then_the_run_starts_with_both_and_tells_no_secret(
    job,
):
    exit_code, output, seen = job
    assert exit_code == 0 and seen, output[-3000:]
    for file in (seen["recipe"], seen["theirs"]):
        assert "py_modules_files" in Path(file).parts, "not from Ray's runtime environment"
    assert {name: seen["environment"].get(name) for name in JOB_ENVIRONMENT} == JOB_ENVIRONMENT
    assert seen["hook"], "the job's own setup hook has not run"
    assert "ray init kwargs" in output and "kept-secret" not in output
