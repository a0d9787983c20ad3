"""Start-up checks: everything that can be known to be wrong before a cluster starts ends in a clear error."""

import logging
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from ..config.extensions import declared, done_otherwise, load
from ..config.options import AsyncDAPOConfig
from ..config.values import ConfigError, ConfigErrors, check_each
from ..runtime.containment import contained, first_line
from ..runtime.interruption import interruptible
from ..runtime.logs import told_if_slow
from ..runtime.verl_version import check_versions
from .overrides import option_tree
from .users_code import name_files_plainly, shipped_modules
from .verl_options import check_types

logger = logging.getLogger(__name__)

NOT_TRIED = "not tried: "  # a note that begins so claims nothing
WARNING = "warning: "  # one that begins so is logged at every start
OPTIONS = "async_dapo options"  # the check without which those after it do not run
LEFT_OUT = (NOT_TRIED, f"{WARNING}extensions/")  # how notes begin of what was not tried

Check = Callable[[], str | None]  # returns a note


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How a check ended: with a note, or with an error."""

    name: str
    note: str = ""
    error: ConfigError | None = None


@dataclass(slots=True, kw_only=True)
class Seen:
    """What checks leave to those after them.

    Attributes:
        rows: one of each data source, as verl's data set gives it; None: the data were refused.
    """

    config: DictConfig
    rows: list[dict[str, Any]] | None = None
    _model: Any = None

    def model(self) -> Any:
        """The `HFModelConfig` that verl makes, once for all checks: to load a tokenizer takes seconds.

        Raises:
            ConfigError: if it cannot be loaded.
        """
        if self._model is None:
            from .model import load_by_verl

            self._model = load_by_verl(self.config)
        return self._model


def check_all(config: DictConfig) -> None:
    """Run every check that this copy has; none of them starts Ray.

    Raises:
        ConfigError: the first that is found, naming key, value and remedy.
    """
    for finding in findings(config):
        if finding.error is not None:
            raise finding.error
        if finding.note.startswith(WARNING):
            logger.warning("%s: %s", finding.name, finding.note.removeprefix(WARNING))


def findings(config: DictConfig) -> Iterator[Finding]:
    """Run every check, cheap ones first, each whatever became of those before. Keys that nobody reads are left out of
    what the others look at. Without options, and values of the right types, no other can run.
    """
    yield from _run("versions", check_versions)
    parsed: list[AsyncDAPOConfig] = []
    tree = option_tree()

    def find_unread() -> None:
        nonlocal config
        config, errors = tree.without_unread(config)
        if errors:
            raise ConfigErrors(errors)

    def parse() -> str:
        types = partial(check_types, config, partial(tree.check_types, config))
        check_each([types, partial(AsyncDAPOConfig.from_hydra, config)])
        name_files_plainly(config)
        parsed.append(AsyncDAPOConfig.from_hydra(config))
        return f"{parsed[0].rollout_strategy}, {parsed[0].stop_rule}"

    if tree.has_keys:
        yield from _run("keys", find_unread)
    yield from _run(OPTIONS, parse)
    for options in parsed:
        for about, note in done_otherwise(config):
            yield Finding(name=about, note=WARNING + note)
        with shipped_modules(config):
            for name, check in checks_of(config, options).items():
                yield from _run(name, check)


def _run(name: str, check: Check) -> Iterator[Finding]:
    """One finding if all is well, else one for each mistake."""
    try:
        # The user's code may raise anything, and go on for ever.
        with told_if_slow(f"the check of {name}"), interruptible(signal.SIGINT), contained():
            note = check() or ""
        yield Finding(name=name, note=note)
    except ConfigErrors as found:
        yield from (Finding(name=name, error=error) for error in found.errors)
    except ConfigError as error:
        yield Finding(name=name, error=error)
    except OmegaConfBaseException as error:
        what = str(error).split("\n")[0]
        problem = ConfigError(error.full_key or "config", "<unreadable>", f"{what}; correct the override")
        yield Finding(name=name, error=problem)
    except Exception as error:  # what no check foresees of data, models and users' code has a line like the rest
        problem = ConfigError(name, "<not checked>", f"{first_line(error)}; correct what is read there")
        problem.__cause__ = error
        yield Finding(name=name, error=problem)


def checks_of(config: DictConfig, options: AsyncDAPOConfig) -> dict[str, Check]:
    """The checks of a run by their names, in order: the core's, and those that extensions put around them."""
    seen = Seen(config=config)
    checks = _essential(config, options, seen)
    for name, one in declared().items():
        if one.checks:
            checks = load(name, one.checks)(checks, config, options, seen)
    return checks


def _essential(config: DictConfig, options: AsyncDAPOConfig, seen: Seen) -> dict[str, Check]:
    """What options say together, and whether a resumed run can go on. They are imported here, once the versions have
    been looked at.
    """
    from .checkpoint_to_resume import check_resume
    from .rules import check_options
    from .verl_options import check_engine_arguments, check_verl_options

    def model() -> None:
        from ..rollout.codec import codec  # it imports verl's agent loops, for seconds

        codec().check_model(config, seen.model())

    return {
        "verl's options": partial(check_verl_options, config),
        "options together": partial(check_options, config, options),
        "vLLM's arguments": partial(check_engine_arguments, config),
        "checkpoint": partial(check_resume, config),
        "model": model,
    }


def in_turn(*checks: Check) -> Check:
    """One check of several, each of which runs whatever those before it find."""

    def all_of_them() -> str:
        notes: list[str | None] = []
        check_each([partial(lambda check: notes.append(check()), check) for check in checks])
        return "; ".join(filter(None, notes))

    return all_of_them


def behind(checks: dict[str, Check], further: dict[str, dict[str, Check]]) -> dict[str, Check]:
    """The checks with further ones behind some, by the names of these."""
    return {name: check for one in checks for name, check in ({one: checks[one]} | further.get(one, {})).items()}
