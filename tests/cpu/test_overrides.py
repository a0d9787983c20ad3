"""Hydra reads the quick start's overrides as they are meant, whatever the folders are called."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser

from recipe.async_dapo_lab.quickstart.model_and_data import Assets
from recipe.async_dapo_lab.quickstart.overrides import (
    RunSettings,
    recipe_overrides,
    verl_overrides,
    verl_sync_overrides,
)

from ..support.composed_runs import compose_run


def settings(folder: Path) -> RunSettings:
    return RunSettings(assets=Assets(folder=folder), output=folder, ray_folder=folder, steps=60, seed=0)


def parsed(folder: Path) -> dict[str, object]:
    overrides = [*verl_overrides(settings(folder)), *recipe_overrides(strategy="discard", stop_rule=None)]
    values = OverridesParser.create().parse_overrides(overrides)
    assert len({value.key_or_group for value in values}) == len(overrides), "an option is given twice"
    return {value.key_or_group: value.value() for value in values}


@pytest.mark.parametrize("name", ["plain", "two words", "a=b,c", "it's {here}"])
def test_given_a_folder_of_any_name_when_parsed_then_paths_arrive_whole(name):
    folder = Path("/runs", name)
    values = parsed(folder)
    assert values["actor_rollout_ref.model.path"] == str(folder / "model")
    assert values["ray_kwargs.ray_init._temp_dir"] == str(folder)


def test_verls_sync_mode_trains_with_the_actor_of_the_recipe():
    job = list(verl_overrides(settings(Path("/runs"))))
    recipe = compose_run([*job, *recipe_overrides(strategy="partial", stop_rule=None)])
    with initialize_config_module("verl.trainer.config", version_base=None):
        verl = compose("ppo_trainer", overrides=[*job, *verl_sync_overrides()])
    assert verl.actor_rollout_ref.actor == recipe.actor_rollout_ref.actor
