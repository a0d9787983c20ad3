"""Options whose values are looked up late: verl, torch and TransferQueue do it in workers and servers, minutes after
the start. Here the same values are looked up, or tried, before Ray starts.

Choices are read from the installed code wherever they stand there, so that another version brings its own.
"""

import inspect
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import torch
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo import rollout_corr_helper as corrections
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY, agg_loss, get_kl_controller
from verl.utils import omega_conf_to_dataclass
from verl.utils.torch_dtypes import BFLOAT_LIST, FLOAT_LIST, HALF_LIST
from verl.utils.tracking import Tracking
from verl.workers.config.optimizer import build_optimizer

from ...config.values import ConfigError, check_choice, check_each, refused
from ...config.verl_keys import ACTOR, CORRECTION, MODEL, REF, ROLLOUT
from ...startup.facts import Run
from ...startup.rules import LOSS_MODE
from ...startup.verl_options import listed, verls_file, verls_reward_managers

_FUSED = MODEL + "fused_kernel_options.impl_backend"
_STORAGE, _SIMPLE = "transfer_queue.backend.storage_backend", "SimpleStorage"
_SHARDED = {"actor": ACTOR + "fsdp_config.", "ref": REF + "fsdp_config.", "critic": "critic.fsdp."}
_OPTIMIZERS = {"actor": ACTOR + "optim", "critic": "critic.optim"}
_PARTS = {"actor": ACTOR + "checkpoint.", "critic": "critic.checkpoint."}

# They need a field that the V1 trainer never computes, and fail after the first rollout.
UNSUPPORTED_ESTIMATORS = ("remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")
KL_LOSSES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "abs+", "low_var_kl+", "k3+")
_PRECISIONS = ("param_dtype", "reduce_dtype", "buffer_dtype")
OLD_WANDB = "tracking"  # verl's older name of the logger wandb, which it still takes
_DTYPES = [str(name) for name in (*HALF_LIST, *FLOAT_LIST, *BFLOAT_LIST) if not isinstance(name, torch.dtype)]
# Logger -> the package that it imports where training runs.
_LOGGER_PACKAGES = {"vemlp_wandb": "volcengine_ml_platform", OLD_WANDB: "wandb"} | {
    name: name for name in ("wandb", "mlflow", "swanlab", "tensorboard", "clearml", "trackio", "rl_insight")
}
_QUOTED = re.compile(r"""["'](\w[\w./-]*)["']""")


def masks(it: Run) -> list[str]:
    return [name.strip() for name in str(it.correction.rollout_rs or "").split(",") if name.strip()]


def _found(file: str, pattern: str) -> list[str]:
    """What a pattern finds in a file of verl's."""
    return re.findall(pattern, verls_file(file).read_text(), re.DOTALL)


def _quoted(file: str, pattern: str) -> list[str]:
    """The quoted words in what it finds first."""
    return [word for block in _found(file, pattern)[:1] for word in _QUOTED.findall(block)]


_saved_parts = partial(
    _found, "utils/checkpoint/checkpoint_manager.py", r'return "(\w+)" in self\.checkpoint_save_contents'
)
_profilers = partial(_found, "utils/profiler/profile.py", r'self\._tool == "(\w+)":')
_quantizations = partial(
    _quoted, "workers/rollout/vllm_rollout/vllm_async_server.py", r"_SUPPORTED_QUANTIZATION = \[(.*?)\]"
)
_fused_kernels = partial(_quoted, "models/transformers/monkey_patch.py", r"fused_kernels_backend not in \[(.*?)\]")
_qat_modes = partial(_quoted, "utils/qat/linear.py", r"class QATMode\(.*?\n\n(.*?)\n\n\n")


def storage_backends() -> list[str]:
    from transfer_queue.storage.managers.base import StorageManagerFactory

    return list(StorageManagerFactory._registry)


def _of(key: str, unless: str = MODEL + "external_lib") -> Callable[[Run], list[Any]]:
    """The value, unless a library of the user's may add to what verl knows."""
    return lambda it: [it.get(key)] if it.get(unless) is None else []


def _given(key: str, acts: Callable[[Run], object] = lambda it: True) -> Callable[[Run], list[Any]]:
    """What is set, as texts, where the option acts."""
    return lambda it: [str(one) for one in listed(it.get(key)) if one is not None] if acts(it) else []


def _is_sharded(model: str) -> Callable[[Run], bool]:
    return lambda it: it.model_engine == "dp" and it.builds[model]


def _keeps(model: str, contents: str) -> Callable[[Run], bool]:
    """Whether checkpoints are saved, or read."""
    return lambda it: it.has[model] and (it.saves if contents == "save_contents" else it.resumes)


def _profiles(role: str) -> Callable[[Run], bool]:
    """Whether a role has another profiler than all have."""
    key = f"{role}profiler.tool"
    return lambda it: it.get(key) != it.get("global_profiler.tool")


# fmt: off
# (option, its values, those that verl knows)
CHOICES: tuple[tuple[str, Callable[[Run], list[Any]], Callable[[], Iterable[str]]], ...] = (
    ("trainer.logger", lambda it: listed(it.trainer.logger), lambda: [*Tracking.supported_backend, OLD_WANDB]),
    ("algorithm.adv_estimator", _of("algorithm.adv_estimator"),
     lambda: ADV_ESTIMATOR_REGISTRY.keys() - UNSUPPORTED_ESTIMATORS),
    (LOSS_MODE, _of(LOSS_MODE), lambda: POLICY_LOSS_REGISTRY),
    (ACTOR + "kl_loss_type", lambda it: [it.actor.kl_loss_type] if it.actor.use_kl_loss else [], lambda: KL_LOSSES),
    ("algorithm.kl_penalty", lambda it: [it.algorithm.kl_penalty] if it.algorithm.use_kl_in_reward else [],
     lambda: KL_LOSSES),
    (CORRECTION + "loss_type", lambda it: [it.correction.loss_type], lambda: ("ppo_clip", "reinforce")),
    (CORRECTION + "rollout_is", lambda it: [it.correction.rollout_is or "token"], lambda: ("token", "sequence")),
    (CORRECTION + "rollout_rs", masks, lambda: corrections.SUPPORTED_ROLLOUT_RS_OPTIONS),
    ("reward.reward_manager.source", lambda it: [it.reward.reward_manager.source], lambda: ("register", "importlib")),
    *((_PARTS[model] + contents, _given(_PARTS[model] + contents, _keeps(model, contents)), _saved_parts)
      for model in _PARTS for contents in ("save_contents", "load_contents")),
    *((key, _given(key, _is_sharded(model)), lambda: _DTYPES)
      for model, node in _SHARDED.items()
      for key in (node + "model_dtype", *(f"{node}mixed_precision.{name}" for name in _PRECISIONS))),
    *((f"{node}qat.mode", _given(f"{node}qat.mode", partial(lambda it, node: it.get(f"{node}qat.enable"), node=node)),
       _qat_modes)
      for node in _SHARDED.values()),
    ("global_profiler.tool", _given("global_profiler.tool"), _profilers),
    *((f"{role}profiler.tool", _given(f"{role}profiler.tool", _profiles(role)), _profilers)
      for role in (ACTOR, REF, ROLLOUT, "critic.")),
    (ROLLOUT + "quantization", _given(ROLLOUT + "quantization"), _quantizations),
    (_FUSED, _given(_FUSED, lambda it: it.model.use_fused_kernels), _fused_kernels),
    (_STORAGE, _given(_STORAGE, lambda it: it.get(_STORAGE) != _SIMPLE), storage_backends),
)
# (option, verl's reading of it, what to set)
TRIED: tuple[tuple[str, Callable[[Run, Any], Any], str], ...] = (
    (CORRECTION + "rollout_is_threshold",
     lambda it, value: value is None or corrections._parse_rollout_is_threshold(value),
     "a number > 0, or lower_upper, such as 0.5_2.0"),
    (CORRECTION + "rollout_rs_threshold",
     lambda it, value: not masks(it) or corrections._parse_rollout_rs_thresholds(masks(it), value),
     "a number > 0 for each mask of rollout_rs, or lower_upper for those that end with k1, such as 0.99_1.01"),
    ("algorithm.kl_ctrl", lambda it, value: it.algorithm.use_kl_in_reward and get_kl_controller(value),
     "type=fixed, or type=adaptive with a horizon > 0"),
    ("critic.loss_agg_mode",
     lambda it, value: it.has["critic"] and agg_loss(torch.zeros(1, 1), torch.ones(1, 1), value),
     "one that the actor can have, such as token-mean"),
    ("reward.reward_manager.name",
     lambda it, value: it.reward.reward_manager.source != "register" or _find_manager(value),
     "one of verl's, such as dapo, or name the class, with reward.reward_manager.source=importlib and its file as "
     "reward.reward_manager.module.path: no file with a reward function is loaded where verl looks a manager up"),
    (REF.removesuffix("."), lambda it, value: it.builds["ref"] and _reference(value), "what it is to be"),
)
# fmt: on


def check_values(run: Run) -> None:
    """
    Raises:
        ConfigError: naming key, value and remedy.
    """
    choices = [
        partial(check_choice, key, value, dict.fromkeys(known()))
        for key, chosen, known in CHOICES
        for value in chosen(run)
    ]
    tried = [partial(_try, run, *row) for row in TRIED]
    optimizers = [partial(_check_optimizer, run.get(key), key) for model, key in _OPTIMIZERS.items()
                  if _is_sharded(model)(run)]  # fmt: skip
    check_each([*choices, *tried, *optimizers, partial(_check_packages, run)])


def _check_packages(run: Run) -> None:
    packages = [_LOGGER_PACKAGES.get(name) for name in listed(run.trainer.logger)]
    missing = ", ".join(package for package in packages if package is not None and find_spec(package) is None)
    if missing:
        raise refused(run.config, "trainer.logger", f"needs {missing}, which is not installed; install or drop it")


def _try(run: Run, key: str, read: Callable[[Run, Any], Any], wanted: str) -> None:
    value = run.get(key)
    try:
        read(run, value)
    except Exception as error:  # verl's code has no class for it
        said = " ".join(str(error).split()).rstrip(".") or f"{type(error).__name__}"
        shown = value.get("type", "...") if isinstance(value, DictConfig) else value
        raise ConfigError(key, shown, f"verl says: {said}; set {wanted}") from error


def _find_manager(name: str) -> Any:
    """One that is none of verl's may be of a module that every process of a run imports with verl."""
    if name in verls_reward_managers():
        return name
    from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls

    return get_reward_manager_cls(name)


def _reference(node: DictConfig) -> Any:
    """As verl's worker makes its options of those of the reference policy."""
    options = OmegaConf.to_container(node, resolve=True)
    assert isinstance(options, dict)
    of_actor = {
        "ppo_mini_batch_size": 1,
        "ppo_micro_batch_size": options.pop("log_prob_micro_batch_size", None),
        "ppo_micro_batch_size_per_gpu": options.pop("log_prob_micro_batch_size_per_gpu", None),
        "use_dynamic_bsz": options.pop("log_prob_use_dynamic_bsz", False),
        "ppo_max_token_len_per_gpu": options.pop("log_prob_max_token_len_per_gpu", None),
    }
    return omega_conf_to_dataclass(OmegaConf.create(options | of_actor))


def _check_optimizer(node: DictConfig, key: str) -> None:
    """Make one as FSDP's worker does, of a matrix and a vector. What needs a GPU, or a driver, is not judged here."""
    try:
        module = import_module(str(node.optimizer_impl))
    except (ImportError, ValueError) as error:
        remedy = f"cannot be imported: {error}; install its package on every node, or set torch.optim"
        raise ConfigError(f"{key}.optimizer_impl", node.optimizer_impl, remedy) from error
    except Exception:
        return
    if not hasattr(module, str(node.optimizer)):
        kinds = {name: kind for name, kind in vars(module).items() if inspect.isclass(kind)}
        known = sorted(name for name, kind in kinds.items() if issubclass(kind, torch.optim.Optimizer))
        check_choice(f"{key}.optimizer", node.optimizer, known)
    if (problem := _fails(node)) is not None:
        blamed, value = _to_blame(node)
        remedy = f"{node.optimizer_impl}.{node.optimizer} says: {problem!r}; correct it, or leave it out"
        raise ConfigError(f"{key}.{blamed}", value, remedy) from problem


def _fails(node: DictConfig) -> Exception | None:
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 2), (2,))]
    with suppress(Exception):
        try:
            build_optimizer(parameters, omega_conf_to_dataclass(node))
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            return error
    return None


def _to_blame(node: DictConfig) -> tuple[str, Any]:
    """The option that, left at its default, would make it work; else the class."""
    kind: Any = type(omega_conf_to_dataclass(node))
    defaults = {field.name: field.default for field in fields(kind)}
    for name in ("override_optimizer_config", "betas", "weight_decay", "lr"):
        if _fails(cast(DictConfig, OmegaConf.merge(node, {name: defaults[name]}))) is None:
            return name, node[name]
    return "optimizer", node.optimizer
