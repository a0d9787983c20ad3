"""What is wrong with overrides that Hydra refuses, in words of ours: its own advice for a key that it does not have is
a `+`, with which nothing reads it.
"""

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig

from ...config.values import ConfigError
from ...startup import overrides
from ...startup.overrides import CommandLine, plain
from ..known_options import keys


def compose_each(line: CommandLine) -> tuple[DictConfig | None, list[ConfigError]]:
    """Those that choose a yaml first, as Hydra does."""
    errors: list[ConfigError] = []
    chosen: list[str] = []
    options: list[Override] = []
    for text in line.overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException as error:
            errors.append(_unreadable(text, error))
            continue
        if override.is_sweep_override():
            remedy = "a run has one value; write a list as [a,b], and a text with a comma as '\"a,b\"'"
            errors.append(ConfigError(override.key_or_group, text.partition("=")[2], remedy))
        elif "." in override.key_or_group and not override.key_or_group.startswith("hydra."):
            options.append(override)
        else:
            try:
                overrides.composed(line, [*chosen, text])
                chosen.append(text)
            except (HydraException, ValueError) as error:
                errors.append(_refused(override, text, error, keys.ENGINES[0]))
    try:
        config = overrides.composed(line, chosen)
    except HydraException as error:
        return None, [*errors, ConfigError("--config-name", line.name, f"Hydra says: {plain(error)}")]
    for override in options:
        try:
            ConfigLoaderImpl._apply_overrides_to_config([override], config)
        except (HydraException, ValueError) as error:
            errors.append(_refused(override, str(override.input_line), error, keys.engine_of(config)))
    return config, errors


def _unreadable(text: str, error: HydraException) -> ConfigError:
    key, equals, value = text.partition("=")
    if not equals:
        return ConfigError(text, "<missing>", "give it a value: KEY=VALUE")
    if key != key.strip() or value != value.lstrip():
        remedy = "leave out the blanks around ="
    elif "<" in value and ">" in value:
        remedy = f"put a value of yours in place of {value[value.find('<') : value.rfind('>') + 1]}"
    elif "~" in value:
        remedy = f"write $HOME in place of ~, or quote it twice: '{key}=\"{value}\"'"
    else:
        remedy = f"Hydra cannot read the value ({plain(error)}); quote it twice: '{key}=\"{value}\"'"
    return ConfigError(key.strip(" +~") or "<no key>", value, remedy)


def _refused(override: Override, text: str, error: Exception, engine: str) -> ConfigError:
    key, value = override.key_or_group, text.partition("=")[2]
    said = plain(error)
    if said.startswith("Could not append"):
        remedy = "the option exists; leave out the +"
    elif not said.startswith(("Could not override", "Could not delete from config. '")):
        remedy = f"Hydra says: {said}"
    elif not keys.find(keys.known_keys(engine), key):
        remedy = keys.unread(key, engine)
    elif followed := keys.followed(key, engine):
        remedy = f"follows {followed}; set that"
    elif override.is_delete():
        remedy = "is not set; leave it out"
    else:
        remedy = f"verl reads it, but its yaml does not have it; write +{text}"
    return ConfigError(key, value or "<none>", remedy)
