"""Puts the recorder of a run, and its load meter, where they belong."""

import importlib
import inspect

from omegaconf import DictConfig, open_dict

from ...config.options import AsyncDAPOConfig
from ...config.values import ConfigError
from ...runtime.containment import contained, first_line
from ...weights.stream import CUSTOM_OPTIONS
from .recorder import Recorder

_OPTION = "async_dapo.recorder"
# Methods that recorders had in earlier versions -> what is called in their place.
RENAMED = {
    "round_closed": "batch_made",
    "engines_asked": "ended and validation_closed",
    "end_phase": "begin_phase(None)",
}


def recorder(options: AsyncDAPOConfig) -> Recorder:
    """The run's."""
    return _class_of(options)(options)


def wire(config: DictConfig, options: AsyncDAPOConfig) -> None:
    """Engines have the load meter that the recorder names."""
    with open_dict(config):
        config.actor_rollout_ref.rollout.custom[CUSTOM_OPTIONS]["meter"] = _class_of(options).meter


def _class_of(options: AsyncDAPOConfig) -> type[Recorder]:
    """
    Raises:
        ConfigError: for what is no subclass of `Recorder`, what cannot be made of the options, and what was written for
            an earlier version, so that nothing would call its methods, or with other arguments than they take.
    """
    if options.recorder is None:
        return Recorder
    module, _, name = options.recorder.rpartition(".")
    try:
        with contained():
            found = getattr(importlib.import_module(module), name)
    except Exception as error:  # the user's module may raise anything
        remedy = f"cannot be imported: {first_line(error)}; name a class that Python finds on every node"
        raise ConfigError(_OPTION, options.recorder, remedy) from error
    if not (isinstance(found, type) and issubclass(found, Recorder)):
        raise ConfigError(_OPTION, options.recorder, "is no subclass of Recorder of extensions/record; make it one")
    if old := [f"{before}, which is {now} now" for before, now in RENAMED.items() if hasattr(found, before)]:
        raise ConfigError(_OPTION, options.recorder, f"has {'; '.join(old)}: nothing calls what it has; rename it")
    if refused := _refused_calls(found):
        raise ConfigError(_OPTION, options.recorder, f"is called with {'; '.join(refused)}; have it take these")
    try:
        inspect.signature(found).bind(options)
    except TypeError as error:
        remedy = f"is made of the run's options alone: {error}; have its __init__ take them, and call Recorder's"
        raise ConfigError(_OPTION, options.recorder, remedy) from error
    return found


def _refused_calls(found: type[Recorder]) -> list[str]:
    """The calls of `Recorder`'s methods that those of a subclass do not take, and why."""
    refused = []
    for name, method in inspect.getmembers(Recorder, inspect.isfunction):
        own = inspect.getattr_static(found, name)
        if name.startswith("_") or own is method or not inspect.isfunction(own):
            continue
        taken = inspect.signature(method).parameters
        named = {one.name: None for one in taken.values() if one.kind is one.KEYWORD_ONLY}
        try:
            inspect.signature(own).bind(*[None] * (len(taken) - len(named)), **named)
        except TypeError as error:
            refused.append(f"{name}({', '.join([*taken][1:])}): {error}")
    return refused
