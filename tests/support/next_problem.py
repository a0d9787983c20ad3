"""The tool of `tool_agent`, in a file of its own: verl loads tools by path."""

from verl.tools.function_tool import function_tool


@function_tool
def next_problem(length: int) -> str:
    """Give another problem.

    Args:
        length: Characters of the last answer.
    """
    return f"{length % 100:02d}+4*{1 + length % 9:02d}"
