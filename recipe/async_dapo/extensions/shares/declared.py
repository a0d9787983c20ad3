"""Shares of a batch by data source: what they add that is known before anything runs."""

from ...config.extensions import Declared
from ...config.values import Rule

# fmt: off
DECLARED = Declared(
    source="prompts.SharedSource",
    checks="checks.with_checks",
    together=(
        Rule("async_dapo.sources", lambda it: it.sources is not None and it.is_separate,
             "engines that never stop hand over whatever is valid first; leave it null with "
             "async_dapo.placement=separate"),
        Rule("async_dapo.sources", lambda it: it.sources is not None and it.selection.by == "history",
             "a history defers prompts of any source; choose async_dapo.selection.by=uniform, or leave it null"),
    ),
)
# fmt: on
