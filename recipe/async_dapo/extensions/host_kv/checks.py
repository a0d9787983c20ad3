"""Whether the model's state can go to host memory, and whether a node has as much."""

from functools import partial

import psutil
import torch
from omegaconf import DictConfig

from ...config.options import AsyncDAPOConfig
from ...config.values import check_each, refused
from ...startup.model import RUN_ON, layers_of
from ...startup.preflight import Check, Seen


def with_checks(checks: dict[str, Check], config: DictConfig, options: AsyncDAPOConfig, seen: Seen) -> dict[str, Check]:
    """Those of the run, and one more where KV goes to host memory."""
    if options.host_kv_gib is None:
        return checks

    def host_memory() -> None:
        check_each([partial(check_layers, config, seen), partial(check_memory, config)])

    return checks | {"host memory": host_memory}


def check_layers(config: DictConfig, seen: Seen) -> None:
    """Blocks of tokens go to host memory; a layer that runs on has one state, of all tokens so far.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    if found := layers_of(seen.model()) & RUN_ON:
        raise refused(
            config,
            "async_dapo.host_kv_gib",
            f"the model has layers of {', '.join(sorted(found))}, whose state is not kept; set null, and "
            "async_dapo.rollout_strategy=partial",
        )


def check_memory(config: DictConfig) -> None:
    """On this machine, where engines may run on it.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    gib, gpus = config.async_dapo.host_kv_gib, config.trainer.n_gpus_per_node
    free_gib = psutil.virtual_memory().available / 2**30
    if gib * gpus > free_gib and (torch.cuda.is_available() or config.trainer.device == "cpu"):
        raise refused(
            config,
            "async_dapo.host_kv_gib",
            f"for each of the {gpus} GPUs of a node; {free_gib:.0f} GiB of host memory are free here; set at most "
            f"{free_gib / gpus:.0f}, less what trainer.n_gpus_per_node training workers offload",
        )
