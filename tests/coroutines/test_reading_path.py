"""The page that follows a prompt through a step names every file of the core that runs in one."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from docs.size import RECIPE_FOLDER, reading_path
from recipe.async_dapo.config.values import RolloutStrategy

from ..support.simulated_cluster import Cluster
from ..support.simulated_options import options
from ..support.simulated_worker import random_task


def test_the_files_that_a_step_runs_are_those_that_the_page_names(start) -> None:
    run: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        run.add(frame.f_code.co_filename)

    cluster = start(options(rollout_strategy=RolloutStrategy.PARTIAL), Cluster, task=random_task(0))
    cluster.step()
    sys.setprofile(note)
    try:
        cluster.step()
    finally:
        sys.setprofile(None)
    own = {Path(name).relative_to(RECIPE_FOLDER).as_posix() for name in run if name.startswith(f"{RECIPE_FOLDER}/")}
    own = {name for name in own if not name.startswith("extensions/")}  # which a copy may lack
    assert own <= set(reading_path()), " ".join(sorted(own - set(reading_path())))
