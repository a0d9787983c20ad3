"""A small valid run, as Hydra overrides; tests break it in one place at a time."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from copy import copy, deepcopy
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import omegaconf._impl
import omegaconf.base
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import AnyNode, Container, DictConfig, ListConfig, ValueNode
from omegaconf.base import Metadata

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.config.values import ConfigError, copied
from recipe.async_dapo.startup.preflight import check_all, findings
from recipe.async_dapo_lab.quickstart.tiny_model import build_model, build_tokenizer

# A configuration has 30 interpolations, which every check resolves again. Their syntax trees are only read.
omegaconf.base.parse = cache(omegaconf.base.parse)
select_node = omegaconf._impl.select_node


def select_what_is_written(cfg: Container, key: str, **how: bool) -> Any:
    """What OmegaConf's own `select_node` finds: a check looks 600 options up, which takes half of its time."""
    node: Any = cfg
    for name in key.split("."):
        options = node._content if type(node) is DictConfig else None
        node = options.get(name) if type(options) is dict else None
    if isinstance(node, ValueNode):
        is_written = not (isinstance(node._val, str) and ("$" in node._val or node._val == "???"))
    else:
        is_written = isinstance(node, Container) and isinstance(node._content, dict | list)
    return node if is_written and not how.get("absolute_key") else select_node(cfg, key, **how)


omegaconf._impl.select_node = select_what_is_written


def copied_metadata(metadata: Metadata, memo: Any = None) -> Metadata:
    """What `deepcopy` makes of what a node knows of itself. Hydra copies a node of options before it makes a dataclass
    of it, twice; most of a copy is this.
    """
    twin = object.__new__(type(metadata))
    twin.__dict__.update(metadata.__dict__)
    twin.flags = copy(metadata.flags)
    # Most are empty; `deepcopy` is slow with those, too.
    twin.resolver_cache = deepcopy(metadata.resolver_cache) if metadata.resolver_cache else defaultdict(dict)
    return twin


Metadata.__deepcopy__ = copied_metadata  # type: ignore[attr-defined]

RECIPE = Path(__file__).parents[2] / "recipe" / "async_dapo"
REWARD_FUNCTION = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    right = float(solution_str == ground_truth)
    return {"score": right, "acc": right}
"""


def reward_of(body: str, kind: str) -> str:
    return f"{kind} compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    {body}\n"


def write_reward(folder: Path, body: str, *, kind: str = "def") -> Path:
    path = folder / "reward.py"
    path.write_text(reward_of(body, kind))
    return path


def row(number: int, *, source: str = "sums", prompt: str | None = None) -> dict[str, Any]:
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": f"{number}+1=" if prompt is None else prompt}],
        "reward_model": {"style": "rule", "ground_truth": str(number + 1)},
        "extra_info": {"index": number},
    }


def rows(count: int, **kwargs: Any) -> list[dict[str, Any]]:
    return [row(number, **kwargs) for number in range(count)]


def write_parquet(path: Path, content: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(content), path)
    return path


def write_lines(path: Path, content: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in content))
    return path


def write_model(folder: Path) -> Path:
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    build_model(tokenizer, seed=0).save_pretrained(folder)
    return folder


def write_files(folder: Path) -> Path:
    """Model, data and reward function of the valid run."""
    folder.mkdir(exist_ok=True)
    write_model(folder / "model")
    write_parquet(folder / "train.parquet", rows(16))
    write_parquet(folder / "val.parquet", rows(4))
    (folder / "reward.py").write_text(REWARD_FUNCTION)
    return folder


def valid_overrides(files: Path) -> list[str]:
    return [
        "trainer.device=cpu",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=1",
        f"actor_rollout_ref.model.path={files}/model",
        f"data.train_files={files}/train.parquet",
        f"data.val_files={files}/val.parquet",
        "data.train_batch_size=8",
        "data.max_prompt_length=32",
        "data.max_response_length=32",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        f"reward.custom_reward_function.path={files}/reward.py",
    ]


def compose_run(overrides: Iterable[str], *, of_all: tuple[str, ...] = ()) -> DictConfig:
    """As Hydra composes a run. Only overrides that choose files are composed, once: that takes 0.3 s.

    Args:
        of_all: overrides before these that many runs have: they are read and applied once.
    """
    chosen, others = [], []
    for text in overrides:
        name = text.partition("=")[0]
        chooses = not name.startswith("++") and ("." not in name or name.startswith("hydra."))
        (chosen if chooses else others).append(text)
    return _overridden(_twin(_begun(tuple(chosen), of_all), None), others)


@cache
def _begun(chosen: tuple[str, ...], others: tuple[str, ...]) -> DictConfig:
    """Each run takes a copy."""
    return override(_composed(*chosen), others)


def _twin(node: Any, parent: Any) -> Any:
    """A deep copy of a configuration in half of the time that `pickle` takes: tests make thousands."""
    kind = type(node)
    assert kind in (AnyNode, DictConfig, ListConfig), "yaml and overrides make no other"
    twin = object.__new__(kind)
    twin.__dict__.update(node.__dict__, _parent=parent, _metadata=copied_metadata(node._metadata), _flags_cache=None)
    content = node.__dict__.get("_content")  # None, or an interpolation, in place of a node's options
    if type(content) is dict:
        twin.__dict__["_content"] = {name: _twin(one, twin) for name, one in content.items()}
    elif type(content) is list:
        twin.__dict__["_content"] = [_twin(one, twin) for one in content]
    return twin


@cache
def _composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(RECIPE / "config"), version_base=None):
        return compose("async_dapo_trainer", overrides=list(overrides))


def override(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """A copy of a composed configuration with further overrides, as Hydra applies them; ten times faster."""
    return _overridden(copied(config), overrides)


def _overridden(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    ConfigLoaderImpl._apply_overrides_to_config(_parser().parse_overrides(list(overrides)), config)
    return config


@cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


# Of verl's FSDP worker on a CPU, in float32, two trajectories at a time.
_ACTOR = "actor_rollout_ref.actor."
CPU_WORKER = (
    "++actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    f"{_ACTOR}strategy=fsdp2",
    f"{_ACTOR}fsdp_config.dtype=float32",
    f"++{_ACTOR}fsdp_config.mixed_precision={{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}}",
    f"{_ACTOR}fsdp_config.use_torch_compile=False",
    f"{_ACTOR}use_torch_compile=False",
    f"{_ACTOR}optim.lr=0.01",
    f"{_ACTOR}ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
)
ComposeRun = Callable[..., DictConfig]


# Of tests of what extensions/checks asks another part; a copy may lack it.
needs_checks = pytest.mark.skipif("checks" not in declared(), reason="extensions/checks is not in this copy")


def refusal(run: ComposeRun, *overrides: str) -> str:
    """The message that a run with these overrides ends with at start-up."""
    with pytest.raises(ConfigError) as caught:
        check_all(run(*overrides))
    return str(caught.value)


def of_options(config: DictConfig, *, before: str = "output folders") -> list[str]:
    """What the checks of options find, before data and model are looked at.

    Args:
        before: the first check that does not count. verl's own take half of the time.
    """
    checks = takewhile(lambda found: found.name not in (before, "checkpoint"), findings(config))
    return [str(found.error) for found in checks if found.error is not None]


def write_verl(package: Path, version: str) -> None:
    """A package `verl` of that version, and nothing in it."""
    (package / "version").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "version" / "version").write_text(f"{version}\n")
