"""Keys of options: those that verl's V1 trainer or this recipe reads, and what was meant by one that nobody reads.

Known are the keys of the composed yaml, the fields of the dataclasses that verl makes of its nodes, and what verl's
code asks a node for by `get` alone. Nodes whose readers take any key are free.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import get_class
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from ...config import search_path  # noqa: F401 (registers itself)
from ...config.extensions import of_copy
from ...config.options import CONFIG_FOLDER, CONFIG_NAME
from ...config.values import ConfigError, copied

_ROLLOUT, _ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"

# Nodes that take any key, though verl's yaml has some for them. Those that are `{}` in its yaml, or a dict without
# fields in its dataclasses, are free as well.
FREE = (
    f"{_ROLLOUT}.engine_kwargs.vllm",  # `extensions/vllm_arguments` knows vLLM's
    "actor_rollout_ref.model.lora",  # Megatron-Bridge's `create_peft` reads it
    "critic.model.lora",
    "megatron.override_transformer_config",
    "fsdp_config.turbo_config",  # of FSDPTurbo, on Ascend
    "fsdp.turbo_config",
    "nsys.controller_nsight_options",
    "nsys.worker_nsight_options",
    "reward.custom_reward_function.reward_kwargs",
    "trainer.rl_insight",
    *(f"ray_kwargs.ray_init.runtime_env.{name}" for name in ("env_vars", "pip", "conda", "uv", "config", "_nsight")),
    *(f"ray_kwargs.ray_init.{name}" for name in ("resources", "labels", "_system_config", "logging_config")),
)
# Node -> keys that its reader asks for, and that neither verl's yaml nor a dataclass has.
BY_GET = {
    "data": ("cache_dir", "need_tools_kwargs"),
    "trainer": ("remove_previous_ckpt_in_save", "rl_insight", "wandb_proxy"),
    "reward": ("max_rpm", "max_tpm", "max_concurrent", "estimated_tokens_per_request", "timeout"),
    "reward.custom_reward_function": ("reward_kwargs",),
    "wrap_policy": ("transformer_layer_cls_to_wrap",),
}
# Fields that verl sets itself, or that it takes from the actor: a value of the user's is overwritten or read by nobody.
_SET_BY_VERL = {
    "engine", "model_config", "global_batch_info", "hf_config", "generation_config", "processor", "architectures",
    "local_path", "local_hf_config_path", "local_tokenizer_path", "profile", "layer_name_map", "sglang_engine_mode",
    "standalone_gpu_memory_utilization", "server", "tool_config", "use_dynamic_bsz", "max_token_len_per_gpu",
    "micro_batch_size_per_gpu", "infer_max_token_len_per_gpu", "infer_micro_batch_size_per_gpu", "use_remove_padding",
    "use_fused_kernels",
}  # fmt: skip
_YAML_ONLY = "actor_rollout_ref.ref"  # the other fields of its dataclass are the actor's
_NEAR = 0.85  # how alike a new key of a free node must be to one that verl's yaml has there, to be a misspelt one
_ALIKE = 0.75  # how alike a misspelt name is to what was meant
ENGINES = ("dp", "megatron", "veomni")
_NOWHERE = "nothing reads it"


@dataclass(slots=True)
class Node:
    """What is known below a key. One without children that is not free is an option."""

    children: "dict[str, Node]" = field(default_factory=dict)
    is_free: bool = False

    def below(self, name: str) -> "Node":
        return self.children.setdefault(name, Node())


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadKey:
    """A key that nobody reads, with the value that it was given."""

    key: str
    value: Any

    def error(self, config: DictConfig) -> ConfigError:
        return ConfigError(self.key, self.value, unread(self.key, engine_of(config)))


def engine_of(config: DictConfig) -> str:
    """verl's training engine; where the option is no known one, which another check tells, verl's default."""
    return str(config.model_engine) if config.get("model_engine") in ENGINES else ENGINES[0]


def unread_keys(config: DictConfig) -> list[UnreadKey]:
    """Every option of a configuration whose key is not known."""
    known = known_keys(engine_of(config))
    return list(_unread(config, known, "", _OwnCode.of(config)))


def changed(config: DictConfig, owner: str) -> Iterator[UnreadKey]:
    """Options of a node, or one option, with other values than the recipe's yaml and verl's have."""
    default = _default_below(engine_of(config), owner)
    for key, value in _below(config, owner):
        if key not in default or value != default[key]:
            yield UnreadKey(key=key, value=value)


@cache
def _default_below(engine: str, owner: str) -> dict[str, Any]:
    return dict(_below(default_config(engine), owner))


def _below(config: DictConfig, owner: str) -> Iterator[tuple[str, Any]]:
    *parents, name = owner.split(".")
    node: Any = config
    for part in parents:
        if not (isinstance(node, DictConfig) and part in node):
            return
        node = _raw(node, part)
    if isinstance(node, DictConfig) and name in node:
        yield from ((one.key, one.value) for one in _options(_raw(node, name), owner))


def without(config: DictConfig, unread: list[UnreadKey]) -> DictConfig:
    """A copy that lacks these keys, so that other checks can go on."""
    config = copied(config)
    with open_dict(config):
        for one in unread:
            *path, name = one.key.split(".")
            node: Any = config
            for part in path:
                node = _raw(node, part)
            del node[name]
    return config


def unread(key: str, engine: str) -> str:
    """Why a key is refused, and what to set instead."""
    if (successor := of_copy("successor")) and (said := successor(key)):
        return f"{_NOWHERE} any more; {said}"
    for other in ENGINES:
        if other != engine and _belongs_to(known_keys(other), key, known_keys(engine)):
            return f"{_NOWHERE} with model_engine={engine}; it belongs to model_engine={other}: leave it out"
    if meant := closest(key, engine):
        return f"{_NOWHERE}; did you mean {meant}?"
    return f"{_NOWHERE}; leave it out (`--cfg job` shows all options)"


def closest(key: str, engine: str) -> str | None:
    """The known key that is most like a wrong one: of the same node, of the same name elsewhere, or of all."""
    root = known_keys(engine)
    parts = key.split(".")
    node = root
    for depth, part in enumerate(parts):
        if part in node.children:
            node = node.children[part]
            continue
        if alike := get_close_matches(part, node.children, n=1, cutoff=_ALIKE):
            mended = ".".join([*parts[:depth], alike[0], *parts[depth + 1 :]])
            return mended if find(root, mended) else closest(mended, engine)
        break
    everywhere = _all_keys(engine)
    names = get_close_matches(parts[-1], {known.rpartition(".")[2] for known in everywhere}, n=3, cutoff=_NEAR)
    for candidates in (
        [known for known in everywhere if known.endswith(f".{key}")],
        *([known for known in everywhere if known.rpartition(".")[2] == name] for name in names),
    ):
        if candidates:
            return min(candidates, key=lambda known: _unlike(known, key))
    return None


def _unlike(known: str, key: str) -> tuple[int, int, int, float]:
    """The less, the more alike: by the names that both end with, then by those that both begin with. Models of rewards
    and teachers have options of the same names, deeper than those of the run's own model.
    """
    names, others = known.split("."), key.split(".")
    ends, begins = _common(names[::-1], others[::-1]), _common(names, others)
    return -ends, -begins, len(names), -SequenceMatcher(None, known, key).ratio()


def _common(names: list[str], others: list[str]) -> int:
    """How many of both are alike from the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(names, others, strict=False)))


def followed(key: str, engine: str) -> str | None:
    """What the node of a key follows, if verl's yaml has an interpolation in its place."""
    node: Any = default_config(engine)
    for part in key.split(".")[:-1]:
        if not (isinstance(node, DictConfig) and part in node):
            return None
        node = _raw(node, part)
    found = re.match(r"\$\{(?:oc.select:)?([\w.]+)", node) if isinstance(node, str) else None
    return None if found is None else found[1]


def find(root: Node, key: str, *, lists: bool = False) -> bool:
    """Whether a key is known.

    Args:
        lists: by its own name, not for being below a free node.
    """
    node = root
    for part in key.split("."):
        if part not in node.children:
            return node.is_free and not lists
        node = node.children[part]
    return True


def _belongs_to(other: Node, key: str, here: Node) -> bool:
    """Whether a key that is not known here is known there; below a node that is free there, if it is not known here."""
    owner = key.rpartition(".")[0]
    return find(other, key, lists=True) or (find(other, key) and not find(here, owner, lists=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnCode:
    """Where the user's code may ask for keys of its own.

    Attributes:
        nodes: which it is given.
        texts: of its files, as far as they are named by path.
    """

    nodes: frozenset[str]
    texts: str

    @classmethod
    def of(cls, config: DictConfig) -> "_OwnCode":
        nodes, files = set(), []
        for node, option, acts in (
            ("data", "data.custom_cls.path", True),
            ("reward", "reward.reward_manager.module.path", _is_imported(config)),
            ("reward.reward_kwargs", "reward.reward_manager.module.path", _is_imported(config)),
            ("data", f"{_ROLLOUT}.agent.agent_loop_config_path", True),
            ("trainer", "trainer.checkpoint_callback_class", True),
            ("algorithm", "actor_rollout_ref.model.external_lib", True),  # which may register estimators of advantages
        ):
            value = OmegaConf.select(config, option, throw_on_resolution_failure=False)
            if value is not None and acts:
                nodes |= {node, ""}
                files.append(Path(str(value).removeprefix("file://")).expanduser())
        return cls(nodes=frozenset(nodes), texts="".join(map(_read, files)))

    def reads(self, owner: str, name: str, known: Node) -> bool:
        """A name that is much like a known one is a misspelt one, unless a file of the user's has it."""
        if owner not in self.nodes:
            return False
        return name in self.texts or not get_close_matches(name, known.children, n=1, cutoff=_NEAR)


def _is_imported(config: DictConfig) -> bool:
    return bool(OmegaConf.select(config, "reward.reward_manager.source") == "importlib")


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""  # the check of that option says so


def _unread(config: DictConfig, known: Node, owner: str, own: _OwnCode) -> Iterator[UnreadKey]:
    for name in map(str, config):
        key = f"{owner}.{name}" if owner else name
        value = _raw(config, name)
        if child := known.children.get(name):
            if isinstance(value, DictConfig) and child.children:
                yield from _unread(value, child, key, own)
        elif known.is_free:
            if get_close_matches(name, known.children, n=1, cutoff=_NEAR):
                yield from _options(value, key)
        elif not own.reads(owner, name, known):
            yield from _options(value, key)


def _raw(config: DictConfig, name: str) -> Any:
    """A value as it was written; a node of options is a `DictConfig`."""
    node: Any = config._get_node(name)
    if isinstance(node, DictConfig | ListConfig) and isinstance(node._content, dict | list):
        return node if isinstance(node, DictConfig) else OmegaConf.to_container(node, resolve=False)
    return node._value()


def options_of(config: DictConfig, owner: str = "") -> Iterator[tuple[str, Any]]:
    """Every option below a node, with its value as it was written; an empty node is one."""
    for name in map(str, config):
        key, value = f"{owner}.{name}" if owner else name, _raw(config, name)
        if isinstance(value, DictConfig) and value:
            yield from options_of(value, key)
        else:
            yield key, value


def _options(value: Any, key: str) -> Iterator[UnreadKey]:
    pairs = options_of(value, key) if isinstance(value, DictConfig) and value else [(key, value)]
    return (UnreadKey(key=one, value=given) for one, given in pairs)


@cache
def default_config(engine: str) -> DictConfig:
    """The recipe's options without any override. Hydra, which composes one configuration at a time, may be at work."""
    at_work = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIG_FOLDER), version_base=None):
            return compose(CONFIG_NAME, overrides=[f"model_engine={engine}"])
    finally:
        GlobalHydra.instance().hydra = at_work


@cache
def verls_own(engine: str) -> dict[str, Any]:
    """Every option that verl's yaml or the recipe's has, with its value as it is written there."""
    return dict(options_of(default_config(engine)))


@cache
def known_keys(engine: str) -> Node:
    """What is known with one of verl's training engines."""
    root = _of_yaml(default_config(engine), "")
    for owner, names in BY_GET.items():
        for node in _named(root, owner):
            for name in names:
                node.below(name)
    _add_ray(root)
    _add_yaml(root.below("transfer_queue"), OmegaConf.load(_beside("transfer_queue", "config.yaml")))
    for owner in FREE:
        for node in _named(root, owner):
            node.is_free = True
    for name, group in ConfigStore.instance().repo.items():  # nodes of tools around the recipe, such as a rehearsal's
        if isinstance(group, dict):
            root.below(name).is_free = True
    return root


def _of_yaml(config: DictConfig, key: str) -> Node:
    node = Node(is_free=bool(key) and not config)
    for name in map(str, config):
        value = _raw(config, name)
        below = f"{key}.{name}" if key else name
        node.children[name] = _of_yaml(value, below) if isinstance(value, DictConfig) else Node()
    if (target := config.get("_target_")) and key != _YAML_ONLY:
        _add_fields(node, get_class(target))
    return node


def _add_yaml(node: Node, config: Any) -> None:
    for name, value in config.items():
        below = node.below(str(name))
        if isinstance(value, DictConfig):
            below.is_free = below.is_free or not value
            _add_yaml(below, value)


def _add_fields(node: Node, cls: type) -> None:
    hints = get_type_hints(cls)
    for name in {one.name for one in fields(cls)} - (_SET_BY_VERL - node.children.keys()):
        below, kind = node.below(name), _without_none(hints[name])
        if is_dataclass(kind):
            assert isinstance(kind, type)
            _add_fields(below, kind)
        elif (get_origin(kind) or kind) in (dict, Any) and not below.children:
            below.is_free = True


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return kinds[0] if len(kinds) == 1 else None
    return hint


def _add_ray(root: Node) -> None:
    """What `ray.init` takes, some of it unseen in its signature, and its runtime environment."""
    import ray
    from ray.runtime_env import RuntimeEnv

    init = root.below("ray_kwargs").below("ray_init")
    unseen = re.findall(r'kwargs\.pop\(\s*"(\w+)"', inspect.getsource(ray.init))
    for name in (*inspect.signature(ray.init).parameters.keys() - {"kwargs"}, *unseen):
        init.below(name)
    for name in (*RuntimeEnv.known_fields, "nsight", "rocprof_sys"):  # which Ray renames
        init.below("runtime_env").below(name)


def _beside(package: str, file: str) -> Path:
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).with_name(file)


def _named(root: Node, owner: str) -> Iterator[Node]:
    """Nodes of this key, or whose key ends so."""
    for key, node in _walk(root, ""):
        if f".{key}".endswith(f".{owner}"):
            yield node


def _walk(node: Node, key: str) -> Iterator[tuple[str, Node]]:
    for name, child in list(node.children.items()):
        below = f"{key}.{name}" if key else name
        yield below, child
        yield from _walk(child, below)


@cache
def _all_keys(engine: str) -> tuple[str, ...]:
    """Of options, with one of verl's training engines."""
    return tuple(key for key, node in _walk(known_keys(engine), "") if not node.children and "_target_" not in key)
