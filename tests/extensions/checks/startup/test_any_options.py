"""No set of options ends a check in a traceback."""

import re
from collections.abc import Callable
from contextlib import suppress

import pytest
from hydra.errors import HydraException
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from recipe.async_dapo.extensions.checks.choices import CHOICES, TRIED
from recipe.async_dapo.extensions.checks.rows import ROWS
from recipe.async_dapo.startup.preflight import findings
from recipe.async_dapo.startup.rules import RULES
from recipe.async_dapo.startup.verl_options import FIXED, IGNORED, NODES, SHADOWED, TYPES

from ....support.composed_runs import compose_run, of_options
from ....support.refusals import in_full
from ....support.refused_options import LINES

OWN = [f"async_dapo.{name}" for name in compose_run([]).async_dapo]
KEYS = [
    *OWN,
    *NODES,
    *TYPES,
    *(key for key, *_ in (*FIXED, *IGNORED, *SHADOWED, *CHOICES, *TRIED)),
    *(one.key for one in (*RULES, *ROWS)),
]
VALUES = ["null", "-1", "0", "1", "3", "0.5", "nan", ".inf", "True", "some", "''", "[]", "{}", "auto", "[a,1]", "{a:1}"]
WORDS = sorted({word for line in LINES for word in in_full(line.replace("->", " ")) if not word.startswith("-")})
ANY = st.one_of(st.sampled_from(WORDS), st.builds("++{}={}".format, st.sampled_from(KEYS), st.sampled_from(VALUES)))


def judged(run, overrides: list[str], judge: Callable[[DictConfig], list[str]]) -> None:
    with suppress(OmegaConfBaseException, HydraException):  # an override of a node that another one has replaced
        config = run(*overrides)
        errors = judge(config)
        assert all(re.match(r"[\w.' -]+=.*: .+", error, re.DOTALL) for error in errors), "no key or no remedy"
        assert not [error for error in errors if "<not checked>" in error]


@given(st.lists(ANY, min_size=1, max_size=6))
@example(["++critic.ulysses_sequence_parallel_size=.inf"])  # found at night
@settings(deadline=None, max_examples=20)
def test_no_set_of_options_ends_in_a_traceback(run, overrides):
    judged(run, overrides, of_options)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@given(st.lists(ANY, min_size=1, max_size=6))
@settings(deadline=None, max_examples=2_000)
def test_no_set_of_options_ends_any_check_in_a_traceback(run, overrides):
    judged(run, overrides, lambda config: [str(one.error) for one in findings(config) if one.error is not None])
