"""Options of an agent, as its entry in the file of agent loops has them."""

import re
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from omegaconf import OmegaConf

from ...config.values import ConfigError, Count, Positive, check_choice, typed

FILE = "actor_rollout_ref.rollout.agent.agent_loop_config_path"
FAILURES = ("drop_group", "score_zero")
LIMITS = ("fail", "score")
REWARDS = ("agent", "function")
NODE = "node"  # as `host`: the address that the worker's node has in the cluster
_ALL = ("", "0.0.0.0", "::", "*")


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """One of `agent` and `command` is given.

    Attributes:
        agent: `module:function`, called with base URL, key and sample, in a process of agents; may be a coroutine
            function. Returns a mapping with `reward`, or a number.
        command: a command line; its result is `result.json` in its folder, or its last line of output, as JSON.
        environment: further variables of a command.
        parser: of calls of tools, one of verl's; None: by the model's family, else `multi_turn.format`.
        reward: `agent`: its result has the score; `function`: the run's reward function scores the last row.
        time_limit_s: time that an agent may spend beside its turns; their time, and that of stops, does not count [s].
        silence_s: longest time without a request [s].
        max_turns: further requests are refused, as if the context were full [count].
        on_failure: `drop_group`, or `score_zero`: an agent that fails scores 0, if it has had a turn, whatever it has
            posted, and no reward function is asked.
        on_time_limit: `fail`, as `on_failure` says; `score`: what it has posted counts, else 0; with a reward function,
            that scores it.
        replayable: whether it may run again, over its recorded turns, where its process is gone; else its group is
            retired.
        ignored: regular expressions; what matches them in a prompt may differ when the agent runs again.
        host: address that the gateway listens at, and that agents are told; `node`: that of the worker's node, for
            agents that run on another one.
    """

    agent: str | None = None
    command: list[str] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    parser: str | None = None
    reward: str = "agent"
    time_limit_s: float = 3600.0
    silence_s: float = 1800.0
    max_turns: int = 1000
    on_failure: str = "drop_group"
    on_time_limit: str = "fail"
    replayable: bool = True
    ignored: list[str] = field(default_factory=list)
    host: str = "127.0.0.1"

    @classmethod
    def names(cls) -> frozenset[str]:
        return frozenset(one.name for one in fields(cls))

    @classmethod
    def of(cls, values: dict[str, Any]) -> "AgentOptions":
        """
        Raises:
            ConfigError: naming key, value and remedy.
        """
        if unknown := values.keys() - cls.names():
            name = sorted(unknown)[0]
            raise ConfigError(
                f"{FILE}, {name}", values[name], f"unknown option; known: {', '.join(sorted(cls.names()))}"
            )
        plain: dict[str, Any] = {
            key: OmegaConf.to_object(one) if OmegaConf.is_config(one) else one for key, one in values.items()
        }
        options = cls(**plain)
        options._check()
        return options

    def _check(self) -> None:
        if (self.agent is None) == (self.command is None):
            raise ConfigError(f"{FILE}, agent", self.agent, "name either agent, a function, or command, a command line")
        if self.agent is not None and not re.fullmatch(r"[\w.]+:\w+", str(self.agent)):
            raise ConfigError(f"{FILE}, agent", self.agent, "must be module:function")
        words = self.command if isinstance(self.command, list) else []
        if self.command is not None and not (words and all(isinstance(word, str) for word in words)):
            raise ConfigError(
                f"{FILE}, command", self.command, "must be a list of words: the program and its arguments"
            )
        for name, choices in (("on_failure", FAILURES), ("on_time_limit", LIMITS), ("reward", REWARDS)):
            check_choice(f"{FILE}, {name}", getattr(self, name), choices)
        for name, kind in (("time_limit_s", Positive), ("silence_s", Positive), ("max_turns", Count)):
            typed(kind, getattr(self, name), f"{FILE}, {name}")
        if not isinstance(self.host, str) or self.host in _ALL:
            remedy = f"agents are told this address: name one that they reach, or {NODE} for that of each worker's node"
            raise ConfigError(f"{FILE}, host", self.host, remedy)
        self._check_environment()
        if not isinstance(self.ignored, list):
            raise ConfigError(f"{FILE}, ignored", self.ignored, "must be a list of regular expressions")
        for pattern in self.ignored:
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise ConfigError(f"{FILE}, ignored", pattern, f"must be a regular expression: {error}") from error

    def _check_environment(self) -> None:
        """Values may be secrets: none is told."""
        key, given = f"{FILE}, environment", self.environment
        if not isinstance(given, dict):
            raise ConfigError(key, type(given).__name__, "must have the variables' names and values")
        if wrong := [name for name, value in given.items() if not (isinstance(name, str) and isinstance(value, str))]:
            raise ConfigError(key, wrong[0], "names and values must be text: put this one into quotes")
        if given and self.command is None:
            raise ConfigError(key, next(iter(given)), "only a command has it; set variables in the function's module")

    @cached_property
    def ignored_patterns(self) -> list[re.Pattern[str]]:
        return [re.compile(pattern) for pattern in self.ignored]

    @property
    def name(self) -> str:
        return self.agent or " ".join(self.command or ())

    def cannot(self, remedy: str) -> ConfigError:
        """The error for an agent that a copy of the recipe cannot serve; to be raised."""
        key, value = ("agent", self.agent) if self.agent is not None else ("command", self.command)
        return ConfigError(f"{FILE}, {key}", value, remedy)

    def scores(self, reason: str) -> bool:
        """Whether an agent that has failed for this reason is scored."""
        return self.on_failure == "score_zero" or self.scores_what_there_is(reason)

    def scores_what_there_is(self, reason: str) -> bool:
        """Whether it is scored as if it had ended by itself; else it scores 0."""
        return reason == "agent_timeout" and self.on_time_limit == "score"
