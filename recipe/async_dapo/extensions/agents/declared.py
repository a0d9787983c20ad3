"""Calls that are made once, and agent loops that outlive the stop: the place where they plug in."""

from ...config.extensions import Declared
from ...config.values import Rule
from ...config.verl_keys import TOOL_FILES

# fmt: off
DECLARED = Declared(
    loops="loops.of_worker",
    checks="tried_calls.with_checks",
    rules=(
        Rule("async_dapo.calls.check",
             lambda it: it.options.calls.check is not None and not any(map(it.get, TOOL_FILES)),
             f"the run has no tools to call; name their file by {' or '.join(TOOL_FILES)}, or leave it null"),
    ),
)
# fmt: on
