"""Options that do not go with shares by source are refused."""

import pytest

from recipe.async_dapo.extensions.shares.declared import DECLARED

from ....support.composed_runs import of_options
from ....support.refusals import assert_refused

EXAMPLES = """
async_dapo.sources={sums:1} separate -> async_dapo.sources=null
async_dapo.sources=balanced async_dapo.selection.by=history -> async_dapo.selection.by=uniform
"""
LINES = EXAMPLES.strip().splitlines()


@pytest.mark.parametrize(("rule", "line"), [*zip(DECLARED.together, LINES, strict=True)], ids=LINES)
def test_a_row_is_refused_with_key_value_and_remedy_and_its_neighbour_passes(run, monkeypatch, rule, line):
    assert_refused(run, monkeypatch, rule, line)


@pytest.mark.parametrize(
    "value", ["drawn", "{}", "{sums:0}", "{sums:-1,code:2}", "{sums:much}", "{sums:inf}", "{sums:nan}", "3"]
)
def test_other_values_are_refused_with_what_is_meant(run, value):
    errors = of_options(run(f"async_dapo.sources={value}"))
    assert any(error.startswith("async_dapo.sources=") and "NAME: NUMBER" in error for error in errors), errors
