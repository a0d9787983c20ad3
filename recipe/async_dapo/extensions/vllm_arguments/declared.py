"""Names and values of vLLM's arguments: the place where they plug in."""

from ...config.extensions import Declared

DECLARED = Declared(checks="arguments.with_arguments")
