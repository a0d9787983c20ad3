"""Arguments of vLLM are looked up before a run starts: their names, and the texts that they take, are read from the
installed source, as to import vLLM takes longer than all checks.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from ...config.options import AsyncDAPOConfig
from ...config.values import ConfigError, check_choice, check_each, did_you_mean
from ...config.verl_keys import ROLLOUT, VLLM
from ...startup.preflight import Check, Seen, in_turn
from ...startup.verl_options import OVERRIDDEN

_MISSPELT = 0.85  # how alike a text must be to a known one, to be that one misspelt
_QUOTED = re.compile(r"""["'](\w[\w./-]*)["']""")


def with_arguments(
    core: dict[str, Check], config: DictConfig, options: AsyncDAPOConfig, seen: Seen
) -> dict[str, Check]:
    """The core's checks, with this one behind its own of vLLM's arguments."""
    return core | {"vLLM's arguments": in_turn(core["vLLM's arguments"], partial(check_arguments, config))}


def check_arguments(config: DictConfig) -> None:
    """Refuse an argument that vLLM does not have, and a text that one does not take.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    given = config.actor_rollout_ref.rollout.engine_kwargs.vllm.items()
    names = [partial(_check_name, str(key), value) for key, value in given if value is not None]
    check_each([*names, *(partial(check_choice, *one) for one in _wrong_texts(config))])


def _check_name(key: str, value: Any) -> None:
    name, known = key.replace("-", "_"), vllm_arguments()
    if known and name not in known and name not in OVERRIDDEN:
        hint = did_you_mean(name, known) or "; see `vllm serve --help`"
        raise ConfigError(VLLM + key, value, f"vLLM has no such argument{hint}")


def _wrong_texts(config: DictConfig) -> Iterator[tuple[str, str, list[str]]]:
    """Option, value and choices of each argument that verl's options or users set to what vLLM does not take."""
    given = config.actor_rollout_ref.rollout.engine_kwargs.vllm
    written = {str(key).replace("-", "_"): f"{VLLM}{key}" for key in given}
    for argument, texts in vllm_choices().items():
        option = OVERRIDDEN.get(argument)
        key = f"{ROLLOUT}{option}" if option else written.get(argument, f"{VLLM}{argument}")
        value = OmegaConf.select(config, key)
        # `FIXED` has the one logprobs_mode that is right
        if isinstance(value, str) and argument != "logprobs_mode" and texts.is_wrong(value):
            yield key, value, texts.known


def _folder() -> Path | None:
    """Where vLLM is installed, if it is."""
    spec = find_spec("vllm")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


@cache
def vllm_arguments() -> frozenset[str]:
    """Arguments of `vllm serve`, read from the installed source: to import vLLM takes longer than all checks.

    Empty where the source is not found.
    """
    if (folder := _folder()) is None:
        return frozenset()
    of_dataclasses = ("engine/arg_utils.py", "entrypoints/openai/cli_args.py")
    files = [folder / name for name in of_dataclasses]
    if not all(file.is_file() for file in files):
        return frozenset()
    return frozenset(name for file in files for name in re.findall(r"^    (\w+): ", file.read_text(), re.MULTILINE))


class _Texts(NamedTuple):
    """Texts that an argument of vLLM takes.

    Attributes:
        takes_others: a plugin of vLLM may register further ones, such as a format of weights.
    """

    known: list[str]
    takes_others: bool

    def is_wrong(self, value: str) -> bool:
        """Where others may be registered, only what looks like a misspelt one is wrong."""
        if value in self.known:
            return False
        return not self.takes_others or bool(get_close_matches(value, self.known, n=1, cutoff=_MISSPELT))


@cache
def vllm_choices() -> dict[str, _Texts]:
    """Arguments of vLLM with the texts that they take, read from the installed source; empty where it is not found."""
    if (folder := _folder()) is None:
        return {}
    files = [*folder.glob("config/*.py"), folder / "model_executor/model_loader/__init__.py"]
    kinds: dict[str, list[str]] = {}
    for file in files:
        for name, words in re.findall(r"^(\w+)(?:: TypeAlias)? = Literal\[(.*?)\]", file.read_text(), re.M | re.S):
            if not re.search(r"\b[A-Z]\w+\b(?!['\"])", _QUOTED.sub("", words)):  # else it names others
                kinds[name] = _QUOTED.findall(words)
    arguments = (folder / "engine/arg_utils.py").read_text()
    found = re.findall(r"^    (\w+): (str \| )?(\w+)(?: \| None)? =", arguments, re.MULTILINE)
    return {argument: _Texts(kinds[kind], bool(is_open)) for argument, is_open, kind in found if kinds.get(kind)}
