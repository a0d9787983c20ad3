"""Values of options: what may be chosen, the error for what may not, and plain dicts as typed arguments."""

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta
from omegaconf import DictConfig, OmegaConf

Options = TypeVar("Options")

# Numbers with a range, and how a message names it.
Count = Annotated[int, Meta(ge=1, description="a whole number >= 1")]
NotNegative = Annotated[int, Meta(ge=0, description="a whole number >= 0")]
Positive = Annotated[float, Meta(gt=0, description="a number > 0")]
# Sockets, and other waits of the operating system, take no limit much beyond this one, which is 11 days.
Seconds = Annotated[float, Meta(gt=0, le=1e6, description="a number > 0 and <= 1e6 [seconds]")]
Share = Annotated[float, Meta(ge=0, le=1, description="a number in 0..1")]
SomeShare = Annotated[float, Meta(gt=0, le=1, description="a number > 0 and <= 1")]
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    list[str]: "a list of texts",
    NoneType: "null",
}
NO_NODE = "must hold options; leave out the override that replaces them"


class Placement(StrEnum):
    COLOCATED = "colocated"
    SEPARATE = "separate"


class RolloutStrategy(StrEnum):
    DISCARD = "discard"
    PARTIAL = "partial"
    PARTIAL_STALE_KV = "partial_stale_kv"
    CONSISTENT = "consistent"


class ImportanceSampling(StrEnum):
    BYPASS = "bypass"
    DECOUPLED = "decoupled"
    MIXTURE = "mixture"
    NONE = "none"


class SelectBy(StrEnum):
    UNIFORM = "uniform"
    HISTORY = "history"


class Drafts(StrEnum):
    MTP = "mtp"
    SUFFIX = "suffix"


SUFFIX_PACKAGE = "arctic-inference==0.1.1"  # the one that vLLM names
MOST_DRAFT_TOK = 7  # of suffixes: with the one that is sampled anyway, eight a step


class Sources(StrEnum):
    """Which share of a batch each data source has, in place of shares by name."""

    BALANCED = "balanced"


BALANCED = Sources.BALANCED
Weight = Annotated[float, Meta(gt=0, le=1e15)]  # a finite number
# Of a batch by data source; what counts is how they compare.
Shares = Annotated[
    dict[str | int, Weight], Meta(min_length=1, description="shares by data source, {NAME: NUMBER, ...}")
]

# Arguments by the tool that is called with them.
CallsToTry = Annotated[
    dict[str, dict[str, Any]], Meta(min_length=1, description="calls by tool, {TOOL: {ARGUMENT: VALUE}}")
]


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


def copied(config: DictConfig) -> DictConfig:
    """A deep copy of a whole configuration. `pickle` takes 0.02 s for it, and OmegaConf's own copy 0.08 s; of one node
    `deepcopy` takes less, and its interpolations find the rest where it was.
    """
    return cast(DictConfig, pickle.loads(pickle.dumps(config)))


def refused(config: DictConfig, key: str, remedy: str) -> ConfigError:
    """The error for an option, with the value that the configuration has for it; to be raised.

    Args:
        key: of the option, from the top.
        remedy: what is wrong with its value, and what to set.
    """
    return ConfigError(key, OmegaConf.select(config, key), remedy)


class ConfigErrors(ConfigError):
    """Several bad options, each once; reads as the first one."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        super().__init__(*errors[0].args)
        self.errors = tuple({str(error): error for error in errors}.values())


def as_one(errors: Sequence[ConfigError]) -> ConfigError:
    return errors[0] if len(errors) == 1 else ConfigErrors(errors)


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
        raise as_one(errors)


class Rule(NamedTuple):
    """One combination of options that is refused.

    Attributes:
        key: the option to blame, from the top.
        is_wrong: judges the facts that `check_rules` is given.
        remedy: what is wrong, and what to set; `{it...}` stands for a fact.
        value: of the option, where the configuration does not have the one that counts.
    """

    key: str
    is_wrong: Callable[[Any], object]
    remedy: str
    value: Callable[[Any], object] | None = None


def check_rules(rules: Iterable[Rule], facts: Any, config: DictConfig) -> None:
    """
    Raises:
        ConfigError: for each rule that is broken.
    """
    check_each([partial(_judge, rule, facts, config) for rule in rules])


def _judge(rule: Rule, facts: Any, config: DictConfig) -> None:
    if rule.is_wrong(facts):
        value = OmegaConf.select(config, rule.key) if rule.value is None else rule.value(facts)
        raise ConfigError(rule.key, value, rule.remedy.format(it=facts))


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


def parse_options(cls: type[Options], node: Any, prefix: str) -> Options:
    """A dataclass of options from a plain dict, part by part. A field with a default is no option.

    Raises:
        ConfigError: for an option that is unknown, missing, of another type or out of its range.
    """
    if isinstance(node, cls):
        return node
    if not isinstance(node, dict):
        raise ConfigError(prefix.rstrip("."), node, NO_NODE)
    types = get_type_hints(cls, include_extras=True)
    names = {field.name for field in fields(cast(Any, cls)) if field.default is MISSING}
    for key in node.keys() - names:
        known = ", ".join(sorted(names))
        raise ConfigError(f"{prefix}{key}", node[key], f"unknown option; known: {known}{did_you_mean(key, names)}")
    for key in names - node.keys():
        raise ConfigError(prefix + key, "<missing>", "add it; config/async_dapo_trainer.yaml has all defaults")
    parts = {
        key: parse_options(types[key], value, f"{prefix}{key}.")
        if is_dataclass(types[key])
        else typed(types[key], value, prefix + key)
        for key, value in node.items()
    }
    return cls(**parts)


def number(config: DictConfig, key: str, kind: Any) -> Any:
    """One of verl's options, of a type as of a field of `parse_options`.

    Raises:
        ConfigError: for another type, or a number out of its range.
    """
    return typed(kind, OmegaConf.select(config, key), key)


def typed(kind: Any, value: Any, key: str, *, strict: bool = True) -> Any:
    """
    Args:
        strict: a text is no number; else it is read as one.

    Raises:
        ConfigError: for another type, or a value out of its range.
    """
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError:
        choices = [choice for one in alternatives(kind) if _is_choice(one) for choice in one]
        remedy = f"must be {', or '.join(map(_in_words, alternatives(kind)))}{did_you_mean(value, choices)}"
        if isinstance(value, str) and bool in alternatives(kind):
            remedy += ", not text; of a variable of the environment: ${oc.decode:${oc.env:NAME}}"
        raise ConfigError(key, value, remedy) from None


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The types of a union."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _in_words(kind: Any) -> str:
    if _is_choice(kind):
        return f"one of {', '.join(kind)}" if len(kind) > 1 else str(*kind)
    if get_origin(kind) is Annotated:
        return str(get_args(kind)[1].description)
    return _WORDS.get(kind, "of another type")


def _is_choice(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, StrEnum)
