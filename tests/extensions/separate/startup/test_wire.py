"""What the extension changes of a run's configuration, by the place that it declares."""

import pytest

from recipe.async_dapo.config.extensions import load
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.extensions.separate.declared import DECLARED

from ....support.refusals import in_full


@pytest.mark.parametrize(("strategy", "interval"), [("partial", 64), ("partial_stale_kv", 1), ("consistent", 64)])
def test_given_requests_that_stay_in_engines_over_an_update_then_each_token_is_stamped_by_itself(
    run, strategy: str, interval: int
) -> None:
    config = run(*in_full("separate vllm.stream_interval=64"), f"async_dapo.rollout_strategy={strategy}")
    load("separate", DECLARED.wire)(config, AsyncDAPOConfig.from_hydra(config))
    assert config.actor_rollout_ref.rollout.engine_kwargs.vllm.stream_interval == interval
