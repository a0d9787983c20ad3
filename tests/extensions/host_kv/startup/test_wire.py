"""How engines start that keep KV in host memory."""

import pytest

from recipe.async_dapo.config.extensions import load, refused_parameters
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.extensions.host_kv.connector import HostKVConnector
from recipe.async_dapo.extensions.host_kv.declared import DECLARED

from ....support.refusals import in_full


@pytest.mark.parametrize(("overrides", "ranks"), [("", 1), ("rollout.tensor_model_parallel_size=2", 2)])
def test_engines_have_the_connector_with_memory_for_each_of_their_ranks_and_schedule_synchronously(
    run, overrides: str, ranks: int
) -> None:
    config = run(*in_full(f"host_kv {overrides}"))
    load("host_kv", DECLARED.wire)(config, AsyncDAPOConfig.from_hydra(config))
    vllm = config.actor_rollout_ref.rollout.engine_kwargs.vllm
    assert vllm.async_scheduling is False
    assert vllm.kv_transfer_config.kv_connector_module_path == HostKVConnector.__module__
    assert vllm.kv_transfer_config.kv_connector_extra_config == {"cpu_bytes_to_use": ranks * 2**30}


def test_stop_strings_are_refused_where_what_they_end_would_go_to_host_memory(run) -> None:
    options = AsyncDAPOConfig.from_hydra(run(*in_full("host_kv")))
    why = refused_parameters(options.extensions)["stop"]
    assert "set async_dapo.host_kv_gib=null, or leave" in why


@pytest.mark.parametrize("others", ["async_dapo.max_staleness=0", "separate"])
def test_old_kv_that_does_not_wait_in_host_memory_needs_no_extension(run, others: str) -> None:
    config = run(*in_full(f"async_dapo.rollout_strategy=partial_stale_kv {others}"))
    assert "host_kv" not in AsyncDAPOConfig.from_hydra(config).extensions
