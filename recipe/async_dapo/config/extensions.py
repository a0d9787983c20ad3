"""Extensions: a capability in a folder of its own, `extensions/NAME/`, which can be left out of a copy of the recipe.

No module imports an extension. `declared.py` of its folder says, as `DECLARED`, what is known before anything runs; the
rest of it is loaded by name, by those that have chosen it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from .values import ConfigError, Rule
from .verl_keys import ROLLOUT, VLLM

FOLDER = Path(__file__).parents[1] / "extensions"
PACKAGE = f"{__package__.rpartition('.')[0]}.{FOLDER.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What is known of an extension before anything runs. `declared.py` imports `config/` and `core/` at most.

    Places where it plugs in are named as "module.attribute" of its folder; an empty one is not used.

    Attributes:
        stands_on: another extension, without which it goes, too. It may import that one, and what that one stands on.
        together: rows that are judged as those of `TOGETHER` are, by the recipe's options, for the planner too.
        rules: rows that are judged as those of `startup/rules.py` are, by all options.
        option_tree: makes the `OptionTree` of `startup/overrides.py`; at most one in a copy.
        explained: what an `OptionTree` says of a command line that Hydra refuses, see there; at most one in a copy.
        successor: of an old key, what to set in its place; None for any other key. At most one in a copy.
        checks: `checks(core, config, options, seen)`: all checks of a run before it starts, made of those of the core
            (`startup/preflight.py`), by their names.
        command: what `check.py` runs, with the arguments of its `main`, and as `usage` what it says when asked for
            help; at most one in a copy.
        metrics: that it adds to a step, without the prefix.
        refused_parameters: of sampling, which requests must not have where it acts: their names -> what is wrong, and
            what to set.
        parts: the `Parts` of a run; at most one extension of a run has them.
        observer: makes, of the recipe's options, an `Observer` of `training/observer.py`.
        source: makes, of the recipe's options and the `Source` that it draws from, a `Source` of `training/source.py`,
            which observes, too. Of several, each draws from the one before.
        passes: a subclass of `Passes` of `training/passes.py`; several are combined, in any order.
        step_updates: a subclass of `StepUpdates` of `training/step_updates.py`; at most one in a copy.
        codec: makes the `Codec` of `rollout/codec.py`; at most one in a copy.
        loops: `loops(config, options, worker=, promise=)`: the `Loops` of `rollout/agent_loops.py` of a worker, by its
            number; `promise` makes of a call's id what can be awaited anywhere, and asks its `result_of`. At most one
            in a copy.
        tools: `tools(tools, timeout_s=)`: verl's tools of a worker, as its agent loops get them. At most one in a copy.
        load_tools: `load_tools(config)`: verl's tools of a run, before there is a cluster. At most one in a copy.
        attachment: makes, of a checkpoint's bytes, the `Attachment` of `core/trajectory.py`; at most one in a copy.
        reward_trial: `Trial(config, options)`: calls the run's reward function before there is a cluster. Has `config`,
            with the run's reward manager, `load()`, `submit(arguments) -> Future`, `close()`; what is wrong with the
            function is raised as errors of `core/users_errors.py`. At most one in a copy.
        driver: `driver(config)`: a context manager around all that the driver does with a run; at most one in a copy.
        shipping: the `Shipping` of `runtime/shipping.py`; at most one in a copy.
        agent_program: makes the program of an agent, which `extensions/gateway` serves, of its entry's options: has
            `check()`, before a run, which returns warnings, and `run(address, key, sample)`. At most one in a copy.
        agent_server: the class of the server that agents ask, which `extensions/gateway` opens its sessions at. Has
            `check(options, config)`, before a run, which returns warnings, and `await at(host)`: the server of an event
            loop, with `address`, `open(session)`, which returns a key, and `close(key)`. At most one in a copy.
        api: an `Api` of `extensions/http/apis.py`, that agents may ask by.
        conversation: a subclass of `Conversation` of `extensions/gateway/conversation.py`; at most one in a copy.
        reply_reader: a subclass of `ReplyReader` of `extensions/gateway/replies.py`; at most one in a copy.
        training_worker: a subclass of verl's `TrainingWorker`, of which each policy's is one; several are combined.
        wire: `wire(config, options)`, called once, in the first actor, before anything is built.
    """

    stands_on: str = ""
    together: tuple[Rule, ...] = ()
    rules: tuple[Rule, ...] = ()
    option_tree: str = ""
    explained: str = ""
    successor: str = ""
    checks: str = ""
    command: str = ""
    metrics: tuple[str, ...] = ()
    refused_parameters: Mapping[str, str] = field(default_factory=dict)
    parts: str = ""
    observer: str = ""
    source: str = ""
    passes: str = ""
    step_updates: str = ""
    codec: str = ""
    loops: str = ""
    tools: str = ""
    load_tools: str = ""
    attachment: str = ""
    reward_trial: str = ""
    driver: str = ""
    shipping: str = ""
    agent_program: str = ""
    agent_server: str = ""
    api: str = ""
    conversation: str = ""
    reply_reader: str = ""
    training_worker: str = ""
    wire: str = ""


class Served(NamedTuple):
    """An option's value that an extension serves.

    Attributes:
        key: of the option, from the top.
        value: None = any but null.
        extension: the name of its folder.
        unless: options' values with which the extension is not needed.
        otherwise: of a null that the extension serves, too: what a copy without it does instead.
        without: of a value that a copy without it does not refuse: what it leaves out.
    """

    key: str
    value: str | bool | None
    extension: str
    unless: Mapping[str, str | int] = {}
    otherwise: str = ""
    without: str = ""

    def is_chosen(self, config: DictConfig) -> bool:
        value = OmegaConf.select(config, self.key)
        is_chosen = value is not None and self.value in (None, value)
        return is_chosen and not any(OmegaConf.select(config, key) == other for key, other in self.unless.items())

    def is_default(self, config: DictConfig) -> bool:
        return bool(self.otherwise) and OmegaConf.select(config, self.key) is None

    def instead(self, config: DictConfig) -> str:
        """What a copy without the extension does, in words; empty: it refuses the value, or needs no extension."""
        return self.otherwise if self.is_default(config) else self.without if self.is_chosen(config) else ""


# Engines of their own hold requests over a weight update; without old tokens none goes on.
_HOLDS_OR_DROPS: Mapping[str, str | int] = {"async_dapo.placement": "separate", "async_dapo.max_staleness": 0}
_REPLAYS_ITSELF: Mapping[str, str | int] = {"actor_rollout_ref.actor.strategy": "megatron", "model_engine": "veomni"}
# It stands here, and not in the folders, so that a copy without one of them says which.
SERVED = (
    Served("async_dapo.placement", "separate", "separate"),
    Served("async_dapo.importance_sampling", "mixture", "mixture"),
    Served("async_dapo.selection.by", "history", "history"),
    Served("async_dapo.sources", None, "shares"),
    Served("async_dapo.host_kv_gib", None, "host_kv"),
    Served("async_dapo.rollout_strategy", "partial_stale_kv", "host_kv", _HOLDS_OR_DROPS),
    Served("async_dapo.drafts", None, "drafts"),
    # What users may say of drafts themselves.
    Served(f"{VLLM}speculative_config", None, "drafts"),
    Served(f"{VLLM}speculative-config", None, "drafts"),
    Served("actor_rollout_ref.model.mtp.enable_rollout", True, "drafts", {"actor_rollout_ref.model.mtp.enable": False}),
    Served(f"{ROLLOUT}enable_rollout_routing_replay", True, "route_replay", _REPLAYS_ITSELF),
    Served(
        *("async_dapo.reward.processes", None, "reward_processes", {"async_dapo.reward.processes": 0}),
        otherwise="the reward function runs in verl's reward workers, where a call that never returns keeps its thread",
    ),
    Served("async_dapo.recorder", None, "record"),
    Served("async_dapo.report_dir", None, "record", without="the run writes no run.json and no steps.jsonl there"),
)

# What a copy does without an extension that no option turns on: what it is about, and in words.
WITHOUT = {
    "agreement": (
        "further checks",
        "whether engines and trainer give the same log-probs is not looked at in the first step; training would follow "
        "their difference",
    ),
    "checks": (
        "further checks",
        "data, chat template, model, reward function, agent loops, tools and output folders are not tried, nor whether "
        "a checkpoint has all that this run reads; what is wrong with them ends a run minutes after its start, or is "
        "not told",
    ),
    "known_options": (
        "further checks",
        "options that nothing reads are not looked for; they change nothing, and are not told",
    ),
    "known_values": (
        "further checks",
        "values that verl and torch do not know, and what verl's own checks refuse, are not looked for; they end a run "
        "minutes after its start, or are not told",
    ),
    "loggers": (
        "trainer.logger",
        "console shows all metrics of a step in one line, and a resumed run overwrites the metrics file of before",
    ),
    "mini_batches": (
        "updates of a step",
        "they are cut as verl cuts them: ranks have equal work in the whole step only, and of trajectories of several "
        "rows each row counts as one",
    ),
    "old_options": (
        "further checks",
        "options that verl passes over are not looked for, nor what stands for keys of its older releases",
    ),
    "one_pass": (
        "log-probs",
        "a pass computes them before every update, also before the only one of a step; with importance_sampling=bypass "
        "there is no pass, and a step has no metrics async_dapo/importance/",
    ),
    "policy_health": ("valid groups", "where hardly any is valid, nothing looks at whether the policy has collapsed"),
    "vllm_arguments": (
        "further checks",
        "arguments of vLLM that it does not have, or does not take, are not looked for; they end a run minutes after "
        "its start",
    ),
    "wire_type": (
        "weights",
        "they travel to the engines in the type that the trainer holds them in: twice the bytes, where that is fp32",
    ),
    "shipping": (
        "other nodes",
        "code, option files and variables are not sent there; each node needs them at the same places",
    ),
}


AGENTS = "agents"  # serves what agent loops say of themselves, and their calls
TOOLS = "tools"  # stands on it, and serves verl's tools


@cache
def declared() -> Mapping[str, Declared]:
    """What the extensions in this copy declare, by their names, in order; without those that stand on a missing one."""
    names = sorted(file.parent.name for file in FOLDER.glob("*/declared.py"))
    found: dict[str, Declared] = {name: load(name, "declared.DECLARED") for name in names}
    while gone := [name for name, one in found.items() if one.stands_on and one.stands_on not in found]:
        found = {name: one for name, one in found.items() if name not in gone}
    return found


def load(name: str, place: str) -> Any:
    """A "module.attribute" of an extension."""
    module, _, attribute = place.rpartition(".")
    return getattr(import_module(f"{PACKAGE}.{name}.{module}"), attribute)


def with_what_stands_on(names: Iterable[str]) -> list[str]:
    """These extensions, and those that go with them where they are left out of a copy."""
    gone = set(names)
    while more := {name for name, one in declared().items() if one.stands_on in gone} - gone:
        gone |= more
    return sorted(gone)


def of_copy(place: str) -> Any:
    """What this copy has at a place of `Declared` that no option chooses; None: nothing."""
    own = [load(name, getattr(one, place)) for name, one in declared().items() if getattr(one, place)]
    assert len(own) <= 1, f"{place} of several extensions"
    return own[0] if own else None


def missing(target: str) -> str | None:
    """The extension of a class's dotted path, if it is not in this copy."""
    name = target.removeprefix(f"{PACKAGE}.").partition(".")[0]
    return name if target.startswith(f"{PACKAGE}.") and name not in declared() else None


def not_here(name: str) -> str:
    """Says so of an extension, or of the missing one that it stands on."""
    base = load(name, "declared.DECLARED").stands_on if (FOLDER / name / "declared.py").exists() else ""
    return not_here(base) if base and base not in declared() else f"extensions/{name} is not in this copy"


def not_in_copy(name: str, otherwise: str) -> str:
    """What to do where an extension that is needed is not in this copy."""
    return f"{not_here(name)}; copy that folder too, or {otherwise}"


def check_in_copy(config: DictConfig) -> None:
    """
    Raises:
        ConfigError: for a value whose extension is not in this copy.
    """
    for one in SERVED:
        if one.is_chosen(config) and not one.without and one.extension not in declared():
            remedy = not_in_copy(one.extension, "choose another value")
            raise ConfigError(one.key, OmegaConf.select(config, one.key), remedy)


def done_otherwise(config: DictConfig) -> Iterator[tuple[str, str]]:
    """What this copy does otherwise than a full one, with the options as they are: the option, or what it is about, and
    what is done, in words.
    """
    always = [(name, about, what) for name, (about, what) in WITHOUT.items()]
    for name, about, what in (*always, *((one.extension, one.key, one.instead(config)) for one in SERVED)):
        if what and name not in declared():
            yield about, f"{not_here(name)}: {what}"


def chosen(config: DictConfig) -> list[str]:
    """The extensions that a run has: those whose value is chosen, and those that no option turns on."""
    optional = {one.extension for one in SERVED}
    asked = {one.extension for one in SERVED if one.is_chosen(config) or one.is_default(config)}
    return [name for name in declared() if name in asked or name not in optional]


def refused_parameters(extensions: Iterable[str]) -> dict[str, str]:
    """Of sampling, by their names: what is wrong with them in a run that has these extensions, and what to set."""
    return {name: why for one in extensions for name, why in declared()[one].refused_parameters.items()}
