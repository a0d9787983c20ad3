"""What groups have failed of is in the record, of steps and of validations."""

from collections.abc import Callable
from typing import Any

from ....support.simulated_cluster import Cluster
from ....support.simulated_options import options
from ....support.simulated_worker import Task


def test_given_rewards_that_fail_in_a_step_and_in_a_validation_then_their_causes_are_counted_apart(
    start: Callable[..., Cluster],
) -> None:
    broken = Task(metric_of=lambda ids: ValueError("broken") if ids[0] % 2 else float(ids[1] % 2))
    cluster = start(options(extensions=("record",)), task=broken)
    recorder: Any = cluster.buffer.observers["record"]
    cluster.step()
    causes = recorder.take_causes()
    assert causes and all(cause.startswith("reward_error: ") and "broken" in cause for cause in causes)
    cluster.validate(6)
    [(cause, groups)] = recorder.take_causes().items()
    assert cause.startswith("in validation, reward_error: ") and "broken" in cause and groups == 3
    assert recorder.take_causes() == {}
