"""A copy of the recipe may lack an extension: its option's value is refused by name, and nothing else changes."""

import pytest

from recipe.async_dapo.config import extensions
from recipe.async_dapo.config.extensions import SERVED
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.startup.agent_loop_check import _import

from ..support.composed_runs import of_options

VALUES = {"async_dapo.sources": "balanced"}  # of options that any value chooses


@pytest.mark.parametrize("one", SERVED, ids=str)
def test_a_value_whose_extension_is_not_in_this_copy_is_refused_by_name(run, monkeypatch, tmp_path, one):
    value = one.value or VALUES[one.key]
    monkeypatch.setattr(extensions, "FOLDER", tmp_path)
    extensions.declared.cache_clear()
    try:
        assert not of_options(run())
        errors = of_options(run(f"{one.key}={value}"))
    finally:
        extensions.declared.cache_clear()
    wanted = f"{one.key}={value}: extensions/{one.extension} is not in this copy; copy that folder too, "
    assert [error for error in errors if error.startswith(wanted)], errors


def test_an_agent_loop_whose_extension_is_not_in_this_copy_is_refused_by_name() -> None:
    target = f"{extensions.PACKAGE}.absent.black_box.BlackBoxAgent"
    with pytest.raises(ConfigError, match="extensions/absent is not in this copy; copy that folder too"):
        _import({"name": "solver", "_target_": target}, "solver")
    assert extensions.missing("recipe.another.Loop") is None
