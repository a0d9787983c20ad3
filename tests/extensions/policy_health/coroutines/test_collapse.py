"""The error of a step that cannot be filled, on virtual time."""

import pytest

from recipe.async_dapo.config.options import FilterConfig
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.record import keys

from ....support.simulated_options import options
from ....support.simulated_worker import Task


def test_given_valid_groups_before_and_none_any_more_then_the_policy_is_named_and_not_the_data(start):
    limits = FilterConfig(metric="acc", max_num_gen_batches=3)
    cluster = start(options(filter=limits, extensions=("policy_health",)), task=Task(metric_of=lambda prompt_ids: 1.0))
    for observer in cluster.buffer.observers.values():
        observer.log({keys.STEP_S: 1.0, keys.REJECTED_RATIO: 0.6, "actor/lr": None}, 1)
        observer.log({"val-core/acc": 0.0}, 1)
    what = "filtered: the policy has collapsed since step 1: valid groups 0.4 -> 0; go on from a checkpoint before it"
    with pytest.raises(ConfigError, match=what):
        cluster.step()
