"""What `engine_kwargs.vllm` hands to vLLM behind verl's own options, and a pool of requests that is too large."""

import ast
import logging
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from ..config import AsyncDAPOConfig
from ..option_values import ConfigError, check_each, did_you_mean

logger = logging.getLogger(__name__)

_ROLLOUT = "actor_rollout_ref.rollout."
_KWARGS = _ROLLOUT + "engine_kwargs.vllm."

# vLLM's name -> the option of `rollout` from which verl, and this recipe's checks, take it.
_SAME_NAME = """
    data_parallel_size disable_log_stats dtype enable_chunked_prefill enable_prefix_caching enable_sleep_mode
    enforce_eager gpu_memory_utilization load_format logprobs_mode max_model_len max_num_batched_tokens max_num_seqs
    scheduling_policy seed
"""
OVERRIDDEN = {name: name for name in _SAME_NAME.split()} | {
    "tensor_parallel_size": "tensor_model_parallel_size",
    "pipeline_parallel_size": "pipeline_model_parallel_size",
}


def check_engine_arguments(config: DictConfig) -> None:
    """Refuse an argument that vLLM does not have, or that contradicts an option of verl's.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    rollout = config.actor_rollout_ref.rollout
    given = rollout.engine_kwargs.vllm.items()
    check_each([partial(_check_argument, rollout, str(key), value) for key, value in given if value is not None])


def _check_argument(rollout: DictConfig, key: str, value: Any) -> None:
    name = key.replace("-", "_")
    option = OVERRIDDEN.get(name)
    if option is not None and value != rollout.get(option):
        raise ConfigError(
            _KWARGS + key,
            value,
            f"would take the place of {_ROLLOUT}{option}={rollout.get(option)} in vLLM alone, behind every check; "
            f"set {_ROLLOUT}{option} instead",
        )
    known = vllm_arguments()
    if known and name not in known:
        hint = did_you_mean(name, known) or "; see `vllm serve --help`"
        raise ConfigError(_KWARGS + key, value, f"vLLM has no such argument{hint}")


def warn_of_stale_pool(options: AsyncDAPOConfig) -> None:
    """A pool of a fixed size is the user's, also where `auto` would hold less."""
    bound = options.round_size().staleness_bound(1.0) if options.most_trainable is not None else None
    if bound is not None and options.fixed_pool_size is not None and options.fixed_pool_size > bound:
        logger.warning(
            "async_dapo.rollout_pool_size=%d: with responses of half their limit, more than %d trajectories in flight "
            "pass async_dapo.max_staleness=%d before they are trained, and tokens are masked or thrown away; set auto, "
            "or raise async_dapo.max_staleness",
            options.fixed_pool_size,
            bound,
            options.max_staleness,
        )


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
