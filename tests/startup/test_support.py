"""A row of the table of what is supported says what its test, or a check, says."""

import pytest

from docs.support import BY_HAND, READ, REFUSED, SUPPORT

from ..support.composed_runs import of_options
from ..support.documents import ROOT


@pytest.mark.parametrize(("area", "what", "how", "by"), [row for row in SUPPORT if row[2] != BY_HAND], ids=str)
def test_what_a_row_says_is_tried_has_a_test_and_what_it_says_is_refused_is_refused(run, area, what, how, by):
    if how == REFUSED:
        assert of_options(run(*by.split())), f"{what} is not refused"
    else:
        assert (ROOT / "tests" / by).is_file()
        assert how == READ or not of_options(run()), what
