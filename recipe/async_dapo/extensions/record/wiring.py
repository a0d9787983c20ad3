"""Puts the recorder of a run, and its load meter, where they belong."""

import importlib
from typing import cast

from omegaconf import DictConfig, open_dict

from ...config.options import AsyncDAPOConfig
from ...weights.stream import CUSTOM_OPTIONS
from .recorder import Recorder


def recorder(options: AsyncDAPOConfig) -> Recorder:
    """The run's."""
    return _class_of(options)(options)


def wire(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Engines have the load meter that the recorder names."""
    with open_dict(config):
        config.actor_rollout_ref.rollout.custom[CUSTOM_OPTIONS]["meter"] = _class_of(options).meter


def _class_of(options: AsyncDAPOConfig) -> type[Recorder]:
    if options.recorder is None:
        return Recorder
    module, _, class_name = options.recorder.rpartition(".")
    found = getattr(importlib.import_module(module), class_name)
    assert issubclass(found, Recorder)
    return cast(type[Recorder], found)
