"""A run whose Ray node does not come up starts another one; whatever else ends a run ends it."""

import pytest
import verl.trainer.main_ppo

from recipe.async_dapo.runtime.node_start import run_on_ray

NOT_UP = Exception("The current node timed out during startup. This could happen because some of the raylet failed.")


@pytest.mark.parametrize(
    ("ends", "starts", "error"),
    [
        ([None], 1, None),
        ([NOT_UP, NOT_UP, None], 3, None),
        ([NOT_UP, NOT_UP, NOT_UP], 3, NOT_UP),
        ([NOT_UP, ValueError("no actor")], 2, "no actor"),
    ],
)
def test_a_node_that_does_not_come_up_is_started_again(monkeypatch, ends, starts, error) -> None:
    left = iter(ends)

    def run_ppo(config, task_runner_class) -> None:
        nonlocal starts
        starts -= 1
        assert task_runner_class == "class"
        if (end := next(left)) is not None:
            raise end

    monkeypatch.setattr(verl.trainer.main_ppo, "run_ppo", run_ppo)
    if error is None:
        run_on_ray({}, "class")
    else:
        with pytest.raises(Exception, match=str(error)):
            run_on_ray({}, "class")
    assert starts == 0
