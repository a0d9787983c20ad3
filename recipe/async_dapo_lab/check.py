"""Checks a run as the recipe does, then describes it: `python -m recipe.async_dapo_lab.check <hydra overrides>`.

One paragraph says what will be trained, on what, how much of it at once, and what memory that takes.
"""

import sys
from collections.abc import Sequence
from importlib import metadata

from omegaconf import DictConfig

from ..async_dapo import check
from ..async_dapo.config.options import AsyncDAPOConfig, gpus_per_engine, num_engines
from ..async_dapo.config.values import ConfigError
from ..async_dapo.core.concurrency import EngineLoad
from ..async_dapo.core.leases import server_calls
from ..async_dapo.core.trainer_memory import Gpu
from ..async_dapo.startup.model_check import gpu_here
from .plan.costs import ServerConstants, kv_room_tok
from .plan.hardware import load_model
from .rehearsal.options import WITH_REHEARSAL, assumed_gpu

BUFFERED_BYTES_PER_TOK = 9  # a token's id and log-prob, and its share of what is noted for a delivery


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status, as the recipe's check does."""
    _name_vllm_as_verl_does()
    return check.main(arguments, described, assumed_gpu, WITH_REHEARSAL)


def _name_vllm_as_verl_does() -> None:
    """Where vLLM's CPU build is installed, and its plugin is off, as in a check of a run on GPUs."""
    import verl  # noqa: F401 (brings the plugin, if it is on)

    try:
        metadata.version("vllm")
    except metadata.PackageNotFoundError:
        from .cpu.plugin.async_dapo_cpu.compat import find_vllm_under_its_cpu_name

        find_vllm_under_its_cpu_name()


def described(config: DictConfig) -> str:
    return run_in_words(config, AsyncDAPOConfig.from_hydra(config))


def run_in_words(config: DictConfig, options: AsyncDAPOConfig) -> str:
    room_tok, hardware = None, "CPU"
    if config.trainer.device != "cpu":
        gpu = gpu_here() or assumed_gpu(config)
        room_tok, hardware = _kv_room_tok(config, gpu), gpu.name
    count = num_engines(config)
    engines = f"{count} engine{'s' * (count > 1)} of {gpus_per_engine(config)} x {hardware}"
    room = (
        "; how much its KV cache holds is known once vLLM runs."
        if room_tok is None
        else f", each with room for {room_tok:,} tokens of KV cache."
    )
    batch = options.target_valid_groups * options.rollout_n
    held = options.over_sampling().groups_to_hold
    buffered_bytes = held * options.rollout_n * options.max_response_length * BUFFERED_BYTES_PER_TOK
    age = "no limit on staleness" if options.max_staleness is None else f"at most {options.max_staleness} versions old"
    return (
        f"Each step trains on B = {options.target_valid_groups} valid groups of n = {options.rollout_n} "
        f"({batch:,} trajectories of up to {options.max_response_length:,} tokens; {_valid(options)}). "
        f"{held:,} groups are held at the start of a round. Strategy {options.rollout_strategy}, stop rule "
        f"{options.stop_rule}, tokens {age}, correction {options.importance_sampling}. {engines}{room} "
        f"{_in_flight(config, options, count, room_tok)} "
        + (
            f"Trajectories kept for a later step take up to {_memory(buffered_bytes)} of the trainer's memory."
            if options.keeps_tokens and options.max_staleness != 0
            else "Nothing that was interrupted is kept."
        )
    )


def _memory(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


def _valid(options: AsyncDAPOConfig) -> str:
    metric = options.filter.metric
    return "no filter" if metric is None else f"valid: `{metric}` varies within the group"


def _in_flight(config: DictConfig, options: AsyncDAPOConfig, engines: int, room_tok: int | None) -> str:
    """How many requests run at once, as the load balancer would decide in the first round."""
    rollout = config.actor_rollout_ref.rollout
    max_num_seqs = rollout.max_num_seqs * rollout.data_parallel_size
    most_each = options.max_loads_per_server or server_calls(max_num_seqs) - 1
    capacity = engines * most_each
    if options.rollout_pool_size is None:
        return f"{min(options.lanes_hold, capacity):,} requests in flight at most."
    if options.fixed_pool_size is not None:
        return f"{min(options.fixed_pool_size, capacity):,} requests in flight."
    if room_tok is None:
        return f"Requests in flight size themselves, {capacity:,} at most."
    balance = options.balance(most_per_server=most_each)
    load = EngineLoad(kv_room_tok=room_tok, max_num_seqs=max_num_seqs)
    balance.leases.add_servers([f"engine {i}" for i in range(engines)])
    balance.open({f"engine {i}": load for i in range(engines)})
    most = options.round_size().most_unfinished(1.0)
    first = balance.capacity if most is None else min(balance.capacity, most)
    return f"Requests in flight size themselves, {first:,} in the first round."


def _kv_room_tok(config: DictConfig, gpu: Gpu) -> int | None:
    """Of an engine; None: not known before it runs, as the planner does not know the model."""
    from verl.utils.fs import copy_to_local

    try:
        return kv_room_tok(
            load_model(copy_to_local(config.actor_rollout_ref.model.path)),
            gpu,
            ServerConstants(),
            tensor_parallel_size=gpus_per_engine(config),
            gpu_memory_utilization=config.actor_rollout_ref.rollout.gpu_memory_utilization,
        )
    except ConfigError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
