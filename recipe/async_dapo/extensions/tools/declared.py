"""verl's tools, each call made once, and tried before a run starts: the places where they plug in."""

from ...config.extensions import Declared
from ...config.values import Rule
from ...config.verl_keys import TOOL_FILES

# fmt: off
DECLARED = Declared(
    stands_on="agents",
    tools="tools.recorded_tools",
    load_tools="tried_calls.load_tools",
    checks="tried_calls.with_checks",
    rules=(
        Rule("async_dapo.calls.check",
             lambda it: it.options.calls.check is not None and not any(map(it.get, TOOL_FILES)),
             f"the run has no tools to call; name their file by {' or '.join(TOOL_FILES)}, or leave it null"),
    ),
)
# fmt: on
