"""Prompts chosen by their history: what they add that is known before anything runs."""

from ...config.extensions import Declared
from ...config.values import Rule, SelectBy

# fmt: off
DECLARED = Declared(
    source="source.HistorySource",
    metrics=("selection/skipped_prompts",),
    together=(
        Rule("async_dapo.selection.by", lambda it: it.selection.by is SelectBy.HISTORY and it.filter.metric is None,
             "a history counts by the filter's metric; set algorithm.filter_groups.enable=True, or by=uniform"),
    ),
)
# fmt: on
