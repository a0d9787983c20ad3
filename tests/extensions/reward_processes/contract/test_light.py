"""What a reward process imports."""

import pytest

from ....support.light_imports import HEAVY, assert_imports_without

PROCESS = "recipe.async_dapo.extensions.reward_processes.process"


@pytest.mark.slow
def test_a_reward_process_imports_nothing_that_is_heavy_before_it_loads_its_function() -> None:
    assert_imports_without((*HEAVY, "numpy", "ray"), (PROCESS,))
