"""A tool for verl's tool agent. Type hints and the docstring become its description for the model."""

from verl.tools.function_tool import function_tool


@function_tool
def add(first: int, second: int) -> str:
    """Add two whole numbers.

    Args:
        first: The first number.
        second: The second number.
    """
    return str(first + second)
