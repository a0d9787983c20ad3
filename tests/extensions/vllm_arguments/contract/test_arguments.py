"""What is read of the installed packages' source is what they are."""

from dataclasses import fields

from vllm.engine.arg_utils import AsyncEngineArgs

from recipe.async_dapo.extensions.vllm_arguments.arguments import vllm_arguments


def test_arguments_read_from_the_source_are_those_of_the_class() -> None:
    assert {field.name for field in fields(AsyncEngineArgs)} <= vllm_arguments()
