"""Values of options: what may be chosen, the error for what may not, and plain dicts as typed arguments."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from msgspec import Meta
from omegaconf import DictConfig, OmegaConf


class RolloutStrategy(StrEnum):
    DISCARD = "discard"
    PARTIAL = "partial"
    PARTIAL_STALE_KV = "partial_stale_kv"
    CONSISTENT = "consistent"


class ImportanceSampling(StrEnum):
    BYPASS = "bypass"
    DECOUPLED = "decoupled"
    BALANCE = "balance"
    NONE = "none"


class Drafts(StrEnum):
    SUFFIX = "suffix"


SUFFIX_PACKAGE = "arctic-inference==0.1.1"  # the one that vLLM names
MOST_DRAFT_TOK = 7  # with the one that is sampled anyway, eight a step
SPECULATIVE_CONFIGS = {Drafts.SUFFIX: {"method": "suffix", "num_speculative_tokens": MOST_DRAFT_TOK}}  # of vLLM

_METHODS_WITHOUT_WEIGHTS = ("ngram", "[ngram]", "ngram_gpu", "suffix", "custom_class")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """What `engine_kwargs.vllm` says of drafts, by the option `async_dapo.drafts` or by users themselves.

    Attributes:
        key: as it was given.
        has_weights: a model makes the drafts, and no weight update brings it back once an engine has thrown it away.
    """

    key: str
    config: Mapping[str, Any]

    @classmethod
    def of(cls, engine_kwargs: Mapping[str, Any]) -> "SpeculativeConfig | None":
        """None where there are none."""
        for key, value in engine_kwargs.items():
            if str(key).replace("-", "_") == "speculative_config" and value is not None:
                return cls(key=str(key), config=json.loads(value) if isinstance(value, str) else dict(value))
        return None

    @property
    def has_weights(self) -> bool:
        return (self.config.get("method") or self.config.get("model")) not in _METHODS_WITHOUT_WEIGHTS

    @property
    def most_tok(self) -> int:
        """Of a draft; 0 = vLLM's own default, which is not known here."""
        return int(self.config.get("num_speculative_tokens") or 0)


def own_head_drafts(rollout: DictConfig) -> bool:
    """Whether verl has engines draft with the model's own head (`mtp`)."""
    return all(OmegaConf.select(rollout, f"mtp.{name}") for name in ("enable", "enable_rollout"))


class Auto(StrEnum):
    """In place of a number that the recipe decides itself, step by step."""

    AUTO = "auto"


class OnRewardError(StrEnum):
    DROP_GROUP = "drop_group"
    RAISE = "raise"


class ConfigError(ValueError):
    """A bad option: names the key, the value and the remedy. Arrives whole from a remote actor."""

    def __init__(self, key: str, value: object, remedy: str) -> None:
        super().__init__(key, value, remedy)

    def __str__(self) -> str:
        key, value, remedy = self.args
        return f"{key}={value}: {remedy}"


def refused(config: DictConfig, key: str, remedy: str) -> ConfigError:
    """The error for an option, with the value that the configuration has for it; to be raised.

    Args:
        key: of the option, from the top.
        remedy: what is wrong with its value, and what to set.
    """
    return ConfigError(key, OmegaConf.select(config, key), remedy)


class ConfigErrors(ConfigError):
    """Several bad options; reads as the first one."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        super().__init__(*errors[0].args)
        self.errors = tuple(errors)


def check_each(checks: Iterable[Callable[[], object]]) -> None:
    """Run every check, whatever becomes of those before, so that several mistakes are found at once.

    Raises:
        ConfigError: what one of them found; `ConfigErrors` if several did.
    """
    errors: list[ConfigError] = []
    for check in checks:
        try:
            check()
        except ConfigErrors as found:
            errors += found.errors
        except ConfigError as error:
            errors.append(error)
        except Exception:
            if not errors:  # else most likely a consequence
                raise
    if errors:
        raise errors[0] if len(errors) == 1 else ConfigErrors(errors)


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """The known name that is most like a wrong one, as the end of a message; empty where none is alike."""
    alike = get_close_matches(str(name), map(str, known), n=1)
    return f"; did you mean {alike[0]}?" if alike else ""


def check_choice(key: str, value: object, choices: Iterable[object]) -> None:
    """
    Raises:
        ConfigError: for a value that is none of the choices; it names them, and the one most like it.
    """
    known = list(choices)
    if value not in known:
        raise ConfigError(key, value, f"must be one of {', '.join(map(str, known))}{did_you_mean(value, known)}")


def parse_options(cls: type, node: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Convert a plain dict to constructor arguments of a dataclass, one by one. A field with a default is no option. A
    number's range is part of its type, as msgspec's `Meta`.
    """
    types = get_type_hints(cls, include_extras=True)
    names = {field.name for field in fields(cls) if field.default is MISSING}
    for key in node.keys() - names:
        known = ", ".join(sorted(names))
        raise ConfigError(prefix + key, node[key], f"unknown option; known: {known}{did_you_mean(key, names)}")
    for key in names - node.keys():
        raise ConfigError(prefix + key, "<missing>", "add it; config/async_dapo_trainer.yaml has all defaults")
    return {key: _convert(types[key], value, prefix + key) for key, value in node.items()}


def number(config: DictConfig, key: str, kind: Any) -> Any:
    """One of verl's options, a number.

    Args:
        kind: its type, as of a field of `parse_options`.

    Raises:
        ConfigError: for another type, or a number out of its range.
    """
    return _convert(kind, OmegaConf.select(config, key), key)


def whole_number(config: DictConfig, key: str) -> int:
    """One of verl's options that must be >= 1."""
    return number(config, key, Annotated[int, Meta(ge=1)])


def _convert(kind: Any, value: Any, key: str) -> Any:
    if get_origin(kind) is Annotated:
        bare, meta = get_args(kind)
        value = _convert(bare, value, key)
        if isinstance(value, int | float):
            _check_range(key, value, meta)
        return value
    if isinstance(kind, UnionType):
        if value is None and NoneType in kind.__args__:
            return None
        if Auto in kind.__args__ and value == Auto.AUTO:
            return Auto.AUTO
        if Auto in kind.__args__ and not isinstance(value, int):
            raise ConfigError(key, value, "must be a whole number, or auto")
        kind = next(option for option in kind.__args__ if option is not NoneType)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        check_choice(key, value, kind)
        return kind(value)
    if kind is bool and not isinstance(value, bool):
        raise ConfigError(key, value, "must be True or False")
    if kind is int and (isinstance(value, bool) or not isinstance(value, int)):
        raise ConfigError(key, value, "must be a whole number")
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(key, value, "must be a number")
        return float(value)
    return value


def _check_range(key: str, value: float, range_: Meta) -> None:
    low, above, high = range_.ge, range_.gt, range_.le
    if (low is None or value >= low) and (above is None or value > above) and (high is None or value <= high):
        return
    if high is None:
        wanted = f">= {low}" if above is None else f"> {above}"
    else:
        wanted = f"in {low}..{high}" if above is None else f"> {above} and <= {high}"
    raise ConfigError(key, value, f"must be {wanted}{' seconds' if key.endswith('_s') else ''}")
