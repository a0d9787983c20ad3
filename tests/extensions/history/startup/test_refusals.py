"""Options that do not go with a history are refused."""

import pytest

from recipe.async_dapo.extensions.history.declared import DECLARED

from ....support.refusals import assert_refused

EXAMPLES = """
async_dapo.selection.by=history algorithm.filter_groups.enable=False -> async_dapo.selection.by=uniform
"""
LINES = EXAMPLES.strip().splitlines()


@pytest.mark.parametrize(("rule", "line"), [*zip((*DECLARED.rules, *DECLARED.together), LINES, strict=True)], ids=LINES)
def test_a_row_is_refused_with_key_value_and_remedy_and_its_neighbour_passes(run, monkeypatch, rule, line):
    assert_refused(run, monkeypatch, rule, line)
