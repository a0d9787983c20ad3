"""What `engine_kwargs` is compared with: vLLM's own arguments, and those that verl sets from its options."""

import inspect
from dataclasses import fields

from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
from vllm import AsyncEngineArgs

from recipe.async_dapo.startup.engine_check import OVERRIDDEN, vllm_arguments


def test_arguments_read_from_the_source_are_those_of_the_class() -> None:
    assert {field.name for field in fields(AsyncEngineArgs)} <= vllm_arguments()


def test_verl_sets_what_is_said_to_be_overridden_before_the_arguments_of_the_user() -> None:
    source = inspect.getsource(vLLMHttpServer.launch_server)
    before_the_users = source[: source.index("**engine_kwargs")]
    set_elsewhere = {"data_parallel_size", "pipeline_parallel_size"}  # later, or not at all
    for name, option in OVERRIDDEN.items():
        if name not in set_elsewhere:
            assert f'"{name}": ' in before_the_users and f"self.config.{option}" in before_the_users, name
