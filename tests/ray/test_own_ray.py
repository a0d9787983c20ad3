"""A Ray cluster that a run has started ends with it, however that ends; one that does not answer is given up."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DRIVER = """
import sys, time
from pathlib import Path
from recipe.async_dapo_lab.own_ray import end_ray_with_this_process, prepare_own_ray
prepare_own_ray()
end_ray_with_this_process()
import ray
ray.init(address="local", num_cpus=4, include_dashboard=False, object_store_memory=100_000_000, _temp_dir=sys.argv[1])
actors = [ray.remote(num_cpus=0)(type("Starting", (), {})).remote() for _ in range(4)]
Path(sys.argv[2]).touch()
time.sleep(600)
"""
JOINING = "import sys, ray; ray.init(sys.argv[1])"
PATIENCE_S = 60.0  # how soon it has ended is measured on a free machine, by the fault matrix
LIMIT_S = 500
IMPATIENT = {"RAY_gcs_rpc_server_connect_timeout_s": "1", "RAY_gcs_rpc_server_reconnect_timeout_s": "2"}
# In a process of its own, because it adopts orphans from then on.
SUPERVISOR = """
import os, signal, sys
from pathlib import Path
from benchmarks.faults.life import still_there
from benchmarks.faults.victims import title_of
from recipe.async_dapo_lab.quickstart.supervision import RayFolder, TrainingProcess
driver, started, log, patience_s = sys.argv[1:]
with RayFolder() as ray_folder:
    command = [sys.executable, "-c", driver, str(ray_folder.path), started]
    process = TrainingProcess(command, environment=os.environ, log_file=Path(log))
    with process:
        while not Path(started).exists() and process.exit_code is None:
            process.watch(0.1)
        actors = agents = 0
        while not (actors and agents == 2):
            process.watch(0.01)
            titles = [title_of(one) for one in process.descendants()]
            actors, agents = (sum(name in title for title in titles) for name in ("ray::Starting", "Agent"))
        os.kill(process.pid, signal.SIGKILL)
        print(agents, still_there(process.descendants, after_s=float(patience_s)))
"""


def test_given_a_driver_killed_while_actors_start_then_nothing_of_its_ray_is_left(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SUPERVISOR, DRIVER, str(tmp_path / "started"), str(tmp_path / "log"), str(PATIENCE_S)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 ()\n"


def test_given_a_cluster_that_does_not_answer_when_a_driver_joins_it_then_the_driver_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", JOINING, address],
            env=os.environ | IMPATIENT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    assert done.returncode != 0 and "Failed to connect to GCS within 2 seconds" in done.stderr
