"""What calls of tools cannot do without is refused."""

import pytest

from recipe.async_dapo.extensions.tools.declared import DECLARED

from ....support.refusals import assert_refused

LINES = ["async_dapo.calls.check={add:{first:1}} -> async_dapo.calls.check=null"]


@pytest.mark.parametrize(("rule", "line"), [*zip(DECLARED.rules, LINES, strict=True)], ids=LINES)
def test_a_row_is_refused_with_key_value_and_remedy_and_its_neighbour_passes(run, monkeypatch, rule, line):
    assert_refused(run, monkeypatch, rule, line)
