"""The recipe's entry with the trainer of `inspected_trainer`, which is imported where it trains, not in the driver.

INSPECTION_FILE=out.jsonl SWITCHES='{"deaths": [[2, "training", "server", 1]]}' \
    python -m tests.support.inspected_run <hydra overrides>
"""

import json
import os
from pathlib import Path

import hydra
from omegaconf import DictConfig

from recipe.async_dapo.runtime.logs import show_logs
from recipe.async_dapo.runtime.node_start import run_on_ray
from recipe.async_dapo.startup.preflight import check_all

FAILING_ENGINE = Path(__file__).with_name("failing_engine")


class InspectedTaskRunner:
    def run(self, config: DictConfig) -> None:
        from tests.support.inspected_trainer import train

        train(config)


@hydra.main(config_path="../../recipe/async_dapo/config", config_name="async_dapo_trainer", version_base=None)
def main(config: DictConfig) -> None:
    show_logs()
    check_all(config)
    import ray

    if json.loads(os.environ.get("SWITCHES", "{}")).get("deaths"):
        os.environ["PYTHONPATH"] = os.pathsep.join([str(FAILING_ENGINE), os.environ["PYTHONPATH"]])
    run_on_ray(config, ray.remote(num_cpus=1)(InspectedTaskRunner))


if __name__ == "__main__":
    main()
