"""Trains as the recipe does, and writes the report page when training ends, however it ends.

`python -m recipe.async_dapo_lab.train <hydra overrides>`
"""

import sys

from omegaconf import DictConfig, OmegaConf

from ..async_dapo import main_async_dapo
from .command_line import end_without
from .overrides import before_overrides
from .own_ray import end_ray_with_this_process, prepare_own_ray
from .report.write import report_the_end

MODULE = f"{__package__}.train"
RECORDER = f"{__package__}.recorder.LabRecorder"


def main() -> None:
    end_without("record", otherwise=f"train without a report: python -m {main_async_dapo.MODULE}")
    sys.argv[1:] = before_overrides(sys.argv[1:], f"async_dapo.recorder={RECORDER}")
    composed: list[DictConfig] = []  # none where Hydra's own flags (`--cfg job`), or overrides that it refuses, end it
    try:
        main_async_dapo.main(MODULE, composed.append)
    finally:
        for config in composed:  # of a folder that cannot be told, the run has said so
            report_the_end(OmegaConf.select(config, "async_dapo.report_dir", throw_on_resolution_failure=False))


if __name__ == "__main__":
    prepare_own_ray()
    end_ray_with_this_process()
    main()
