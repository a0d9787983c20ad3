"""How engines start that keep KV in host memory."""

from omegaconf import DictConfig, open_dict

from ...config.options import AsyncDAPOConfig
from .connector import transfer_config


def wire(config: DictConfig, options: AsyncDAPOConfig) -> None:
    rollout = config.actor_rollout_ref.rollout
    if options.host_kv_gib is not None:
        ranks = rollout.tensor_model_parallel_size * rollout.pipeline_model_parallel_size
        with open_dict(config):
            rollout.engine_kwargs.vllm.kv_transfer_config = transfer_config(options.host_kv_gib, ranks)
            rollout.engine_kwargs.vllm.async_scheduling = False  # see `connector`
