"""Builds trainer, engines and workers on the cluster, trains to the end, and takes the data plane down."""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from verl.utils.logging_utils import configure_verl_logging

from ..config.derived import num_engines, server_calls, wire_importance_sampling
from ..config.extensions import chosen, declared, load
from ..config.options import AsyncDAPOConfig
from ..config.router import router_options
from ..data_plane import end_queue, queue_watched
from ..engines.load_balancer import GlobalLoadBalancer
from ..engines.replica import AsyncDAPOReplica, register_replica
from ..rollout.manager import AsyncDAPOAgentLoopManager
from ..runtime.actor_watch import watched
from ..runtime.logs import log_phase, show_logs
from ..runtime.shipping import shipping
from ..weights.stream import CUSTOM_OPTIONS, sockets_folder
from .trainer import AsyncDAPOTrainer

MOST_THREADS = 16  # memory is the limit beyond that


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run is built of.

    Attributes:
        balancer_options: beside `router_options`.
    """

    trainer: type[AsyncDAPOTrainer] = AsyncDAPOTrainer
    manager: type[AsyncDAPOAgentLoopManager] = AsyncDAPOAgentLoopManager
    balancer: type[GlobalLoadBalancer] = GlobalLoadBalancer
    replica: type[AsyncDAPOReplica] = AsyncDAPOReplica
    balancer_options: Callable[[AsyncDAPOConfig], dict[str, Any]] = lambda _: {}

    @classmethod
    def of(cls, config: DictConfig) -> "Parts":
        """Those of the extension that brings its own, if the run has one."""
        own = [load(name, declared()[name].parts) for name in chosen(config) if declared()[name].parts]
        assert len(own) <= 1, "parts of several extensions"
        return own[0] if own else cls()


def train(config: DictConfig, trainer_cls: type[AsyncDAPOTrainer] | None = None) -> None:
    """Build everything, train to the end, and close the data plane, which has been started, whatever happens.

    Agent loop workers start first: they import, on any node, while the trainer starts training workers and engines.

    Args:
        trainer_cls: None = that of the run's `Parts`.
    """
    configure_verl_logging()
    show_logs()
    use_idle_cores()
    OmegaConf.resolve(config)
    shipping().localise(config)
    options = AsyncDAPOConfig.from_hydra(config)
    parts = Parts.of(config)
    router_config = _prepare(config, options, parts)
    trainer = None
    succeeded = False
    try:
        with queue_watched(config.transfer_queue):
            trainer = (trainer_cls or parts.trainer)(config=config)
            manager = parts.manager.start(config)
            with watched(manager.named_workers):  # they are not called while engines start
                trainer.init()
            manager.connect(trainer.get_llm_client(), trainer.get_reward_handles())
            trainer.fit(manager)
        succeeded = True
    finally:
        take_down(trainer, router_config, succeeded=succeeded)
    log_phase(f"the run ends: {why_ended(trainer)}")


def why_ended(trainer: AsyncDAPOTrainer) -> str:
    """In words, of a run that has come to its end."""
    options, total = trainer.config.trainer, trainer.total_training_steps
    if options.val_only:
        return "trainer.val_only=True: the run validates, and trains nothing"
    key = "total_epochs" if options.total_training_steps is None else "total_training_steps"
    limit = f"trainer.{key}={options[key]}"
    if trainer.first_step > total:
        return f"{limit} ends at step {total}, and step {trainer.first_step - 1} is trained; raise it to go on"
    return f"step {total} of {limit} is trained"


def use_idle_cores() -> None:
    """Ray gives an actor of one CPU one thread, for what this one computes over whole batches while all GPUs wait."""
    if torch.get_num_threads() == 1:
        torch.set_num_threads(min(MOST_THREADS, len(os.sched_getaffinity(0))))


def _prepare(config: DictConfig, options: AsyncDAPOConfig, parts: Parts) -> Path:
    """Make verl build this recipe's parts from the configuration. Returns the load balancer's options file."""
    wire_importance_sampling(config, options.importance_sampling)
    register_replica(parts.replica, engine_timeout_s=options.engine_timeout_s, engines=num_engines(config))
    with open_dict(config):
        config.transfer_queue.enable = True
        custom = config.actor_rollout_ref.rollout.custom
        custom[CUSTOM_OPTIONS] = {
            "engine_timeout_s": options.engine_timeout_s,
            "delivery_tok": options.delivery_tok,
            "extensions": list(options.extensions),
            "keeps_weights": False,  # while engines sleep
        }
    for name in chosen(config):
        if declared()[name].wire:
            load(name, declared()[name].wire)(config, options)
    rollout = config.actor_rollout_ref.rollout
    most_per_server = server_calls(rollout.max_num_seqs * rollout.data_parallel_size) - 1
    router_config = _write_router_config(options, parts, most_per_server=most_per_server)
    OmegaConf.update(config, "actor_rollout_ref.rollout.router_config_path", str(router_config))
    return router_config


def take_down(trainer: AsyncDAPOTrainer | None, router_config: Path, *, succeeded: bool) -> None:
    """Close loggers, the data plane and what is ours, each whatever happens to those before."""
    try:
        if (tracking := getattr(trainer, "logger", None)) is not None:
            tracking.finish(exit_code=0 if succeeded else 1)
    finally:
        end_queue()
        shutil.rmtree(router_config.parent, ignore_errors=True)


def _write_router_config(options: AsyncDAPOConfig, parts: Parts, *, most_per_server: int) -> Path:
    """The file through which verl creates our load balancer, on the node where it does.

    Args:
        most_per_server: requests that a server actor takes at once.
    """
    session = sockets_folder().parent  # Ray's: nothing else is left of a run that was killed
    path = Path(tempfile.mkdtemp(prefix="async_dapo_", dir=session)) / "router.yaml"
    router = {
        "router_class": f"{parts.balancer.__module__}.{parts.balancer.__name__}Actor",
        **router_options(options, most_per_server=most_per_server),
        **parts.balancer_options(options),
    }
    OmegaConf.save(router, path)
    return path
