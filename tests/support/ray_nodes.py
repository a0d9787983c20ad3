"""Ray nodes on this machine that ask for a token, each started in an empty folder; and a training on them."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.two_nodes import start_node
from recipe.async_dapo_lab.own_ray import OWN_RAY_ENVIRONMENT, PATIENCE
from recipe.async_dapo_lab.quickstart.activation import SMALL_RAY, cpu_environment
from recipe.async_dapo_lab.quickstart.model_and_data import Assets
from recipe.async_dapo_lab.quickstart.overrides import RunSettings, recipe_overrides, verl_overrides
from recipe.async_dapo_lab.quickstart.supervision import RayFolder, TrainingProcess

from .doors import free_ports
from .fork_server import ForkedTraining
from .harness import ROOT, StallWatch

RAY = Path(sys.executable).with_name("ray")
TOKEN = "0123456789abcdef" * 4
RAY_ENVIRONMENT = (
    PATIENCE | SMALL_RAY | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    address: str
    ray_folder: Path
    head: TrainingProcess


@contextmanager
def two_nodes(
    folder: Path, *, gpus: tuple[int, int], cpus: int = 8, knows: Mapping[str, str] | None = None
) -> Iterator[Nodes]:
    """Nodes `head` and `second`, whose processes run in folders of these names and know nothing of this repository.

    Args:
        gpus, cpus: of each, as Ray counts them.
        knows: variables of theirs.
    """
    gcs, client, agent_1, agent_2 = free_ports(4)
    address = f"127.0.0.1:{gcs}"
    with ExitStack() as stack:
        ray_folder = stack.enter_context(RayFolder()).path
        own = {
            "head": (
                "--head",
                "--node-ip-address=127.0.0.1",
                f"--port={gcs}",
                f"--ray-client-server-port={client}",
                f"--dashboard-agent-listen-port={agent_1}",
                "--include-dashboard=false",
                f"--temp-dir={ray_folder}",
            ),
            "second": (
                f"--address={address}",
                "--node-ip-address=127.0.0.2",
                f"--dashboard-agent-listen-port={agent_2}",
            ),
        }
        started = []
        for (name, arguments), num_gpus in zip(own.items(), gpus, strict=True):
            resources = (f"--num-cpus={cpus}", f"--num-gpus={num_gpus}", "--object-store-memory=300000000")
            started.append(_start_node(stack, folder / name, [*arguments, *resources], knows or {}))
        yield Nodes(address=address, ray_folder=ray_folder, head=started[0])


def _start_node(stack: ExitStack, folder: Path, arguments: list[str], knows: Mapping[str, str]) -> TrainingProcess:
    folder.mkdir()
    hidden = ("PYTHONPATH", "VERL_PLATFORM", "RAY_ADDRESS", *OWN_RAY_ENVIRONMENT)
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = ["bash", "-c", f'cd "{folder}" && exec "{RAY}" start --block "$@"', "ray", *arguments]
    environment |= RAY_ENVIRONMENT | dict(knows)
    return start_node(stack, command, environment=environment, log=folder.with_suffix(".log"))


@contextmanager
def training_on(
    nodes: Nodes,
    assets: Assets,
    driver: Path,
    *,
    module: str,
    steps: int,
    strategy: str,
    overrides: Sequence[str],
    engines: int = 1,
    environment: Mapping[str, str] | None = None,
    forked: bool = False,
) -> Iterator[int]:
    """Train to the end. What is left of it is ended with the context, but for the nodes.

    Args:
        driver: its folder.
        environment: further variables of the driver.
        forked: whether its processes on both nodes are forks of the tests' server.

    Yields:
        The driver's exit code.
    """
    settings = RunSettings(
        assets=assets, output=driver, ray_folder=nodes.ray_folder, steps=steps, seed=0, engines=engines
    )
    verls = [line for line in verl_overrides(settings) if not line.lstrip("+").startswith("ray_kwargs.ray_init")]
    command = [
        *verls,
        *recipe_overrides(strategy=strategy, stop_rule=None),
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.logger=[console,file]",
        *overrides,
    ]
    own = {
        "RAY_ADDRESS": nodes.address,
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "VERL_FILE_LOGGER_PATH": str(driver / "metrics.jsonl"),
    }
    kind = ForkedTraining if forked else TrainingProcess
    process = kind(
        [sys.executable, "-m", module, *command],
        environment=cpu_environment(os.environ, code_path=ROOT) | RAY_ENVIRONMENT | own | dict(environment or {}),
        log_file=driver / "train.log",
        folder=driver,
    )
    with process:
        stall = StallWatch(driver)
        while process.exit_code is None:
            stall.check()
            nodes.head.watch(1.0)
        yield process.exit_code
