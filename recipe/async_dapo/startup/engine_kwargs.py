"""`engine_kwargs.vllm`: what goes to vLLM unseen, and takes the place of verl's own options there."""

import ast
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from ..options.values import ConfigError, check_each, did_you_mean

_ROLLOUT = "actor_rollout_ref.rollout."
_KWARGS = _ROLLOUT + "engine_kwargs.vllm."

# vLLM's name -> the option of `rollout` from which verl, and this recipe's checks, take it.
OVERRIDDEN = {
    name: name
    for name in (
        "data_parallel_size",
        "disable_log_stats",
        "dtype",
        "enable_chunked_prefill",
        "enable_prefix_caching",
        "enable_sleep_mode",
        "enforce_eager",
        "gpu_memory_utilization",
        "load_format",
        "logprobs_mode",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "scheduling_policy",
        "seed",
    )
} | {
    "tensor_parallel_size": "tensor_model_parallel_size",
    "pipeline_parallel_size": "pipeline_model_parallel_size",
}
OWN = ("worker_extension_cls",)  # through it weights reach the engine


def check_engine_kwargs(config: DictConfig) -> None:
    """
    Raises:
        ConfigError: for an argument that vLLM does not have, or one that contradicts an option of its own.
    """
    rollout = config.actor_rollout_ref.rollout
    given = rollout.engine_kwargs.vllm.items()
    check_each([partial(_check_argument, rollout, str(key), value) for key, value in given if value is not None])


def _check_argument(rollout: DictConfig, key: str, value: Any) -> None:
    name = key.replace("-", "_")
    if name in OWN:
        raise ConfigError(_KWARGS + key, value, "is the recipe's own: it brings the weights; leave it out")
    if name in OVERRIDDEN and value != rollout.get(OVERRIDDEN[name]):
        option = OVERRIDDEN[name]
        raise ConfigError(
            _KWARGS + key,
            value,
            f"would take the place of {_ROLLOUT}{option}={rollout.get(option)} in vLLM alone, behind every check; "
            f"set {_ROLLOUT}{option} instead",
        )
    if name == "stream_interval" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ConfigError(_KWARGS + key, value, "must be a whole number of tokens, >= 1")
    known = vllm_arguments()
    if known and name not in known:
        hint = did_you_mean(name, known) or "; see `vllm serve --help`"
        raise ConfigError(_KWARGS + key, value, f"vLLM has no such argument{hint}")


@cache
def vllm_arguments() -> frozenset[str]:
    """Arguments of `vllm serve`, read from the installed source: to import vLLM takes longer than all checks.

    Empty where the source is not found.
    """
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        return frozenset()
    folder, names = Path(spec.origin).parent, set()
    for file in ("engine/arg_utils.py", "entrypoints/openai/cli_args.py"):
        source = folder / file
        if not source.is_file():
            return frozenset()
        for node in ast.parse(source.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith(("EngineArgs", "FrontendArgs")):
                names |= {
                    line.target.id
                    for line in node.body
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                }
    return frozenset(names)
