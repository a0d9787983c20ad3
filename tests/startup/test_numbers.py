"""Each number that the recipe takes from verl's options means what it means there, or is refused before Ray starts."""

from itertools import takewhile

import pytest
from omegaconf import DictConfig, OmegaConf
from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager

from recipe.async_dapo.config import AsyncDAPOConfig, checkpoints_to_keep
from recipe.async_dapo.startup.preflight import findings
from recipe.async_dapo.startup.verl_options import CRITIC_NUMBERS, NUMBERS

from ..support.composed_runs import ComposeRun

# What happens with each value, in verl's words: a cell of `REFUSED` is refused with that, all others are accepted.
REFUSED = {
    "whole": "must be a whole number",
    "number": "must be a number",
    ">=1": "must be >= 1",
    ">=0": "must be >= 0",
    ">=-1": "must be >= -1",
    ">0": "must be > 0",
    "share": "must be > 0 and <= 1",
    "divides": "must divide the 32 trajectories",
}
VALUES = ("-1", "0", "null", "0.5", "some")
TABLE = """
option                                                     -1        0         null       0.5      some
trainer.total_epochs                                       >=1       >=1       whole      whole    whole
trainer.total_training_steps                               >=1       >=1       by_epochs  whole    whole
trainer.save_freq                                          never     never     whole      whole    whole
trainer.test_freq                                          never     never     whole      whole    whole
trainer.critic_warmup                                      none      none      whole      whole    whole
trainer.max_actor_ckpt_to_keep                             all       all       all        whole    whole
trainer.max_critic_ckpt_to_keep                            unused    unused    unused     whole    whole
trainer.nnodes                                             >=1       >=1       whole      whole    whole
trainer.n_gpus_per_node                                    >=1       >=1       whole      whole    whole
data.train_batch_size                                      >=1       >=1       whole      whole    whole
data.max_prompt_length                                     >=1       >=1       whole      whole    whole
data.max_response_length                                   >=1       >=1       whole      whole    whole
data.train_max_samples                                     all       all       whole      whole    whole
data.val_max_samples                                       all       all       whole      whole    whole
data.val_batch_size                                        >=0       at_once   at_once    whole    whole
data.seed                                                  >=0       seed      none       whole    whole
algorithm.filter_groups.max_num_gen_batches                unlimited unlimited whole      whole    whole
reward.num_workers                                         >=1       >=1       whole      whole    whole
reward.reward_kwargs.max_resp_len                          unused    unused    unused     whole    whole
reward.reward_kwargs.overlong_buffer_cfg.len               unused    unused    whole      whole    whole
reward.reward_kwargs.overlong_buffer_cfg.penalty_factor    unused    unused    number     unused   number
transfer_queue.backend.SimpleStorage.total_storage_size    >=1       >=1       unlimited  whole    whole
transfer_queue.backend.SimpleStorage.num_data_storage_units >=1      >=1       whole      whole    whole
ray_kwargs.ray_init.num_cpus                               >=1       >=1       all        whole    whole
actor_rollout_ref.model.lora_rank                          >=0       off       whole      whole    whole
actor_rollout_ref.model.lora.rank                          >=0       off       whole      whole    whole
actor_rollout_ref.rollout.n                                >=1       >=1       whole      whole    whole
actor_rollout_ref.rollout.agent.num_workers                >=1       >=1       whole      whole    whole
actor_rollout_ref.rollout.temperature                      >0        >0        number     softer   number
actor_rollout_ref.rollout.val_kwargs.temperature           >=0       greedy    number     softer   number
actor_rollout_ref.rollout.val_kwargs.top_p                 share     share     number     share_of number
actor_rollout_ref.rollout.val_kwargs.top_k                 all       all       whole      whole    whole
actor_rollout_ref.rollout.val_kwargs.n                     >=1       >=1       whole      whole    whole
actor_rollout_ref.rollout.nnodes                           >=0       shared    whole      whole    whole
actor_rollout_ref.rollout.n_gpus_per_node                  >=1       >=1       whole      whole    whole
actor_rollout_ref.rollout.tensor_model_parallel_size       >=1       >=1       whole      whole    whole
actor_rollout_ref.rollout.data_parallel_size               >=1       >=1       whole      whole    whole
actor_rollout_ref.rollout.pipeline_model_parallel_size     >=1       >=1       whole      whole    whole
actor_rollout_ref.rollout.max_num_seqs                     >=1       >=1       whole      whole    whole
actor_rollout_ref.rollout.max_num_batched_tokens           >=1       >=1       whole      whole    whole
actor_rollout_ref.rollout.max_model_len                    >=1       >=1       the_model  whole    whole
actor_rollout_ref.rollout.gpu_memory_utilization           share     share     number     share_of number
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu >=1      >=1       divides    whole    whole
actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu   >=1       >=1       unused     whole    whole
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu    >=1       >=1       unused     whole    whole
actor_rollout_ref.ref.log_prob_max_token_len_per_gpu       >=1       >=1       unused     whole    whole
actor_rollout_ref.ref.ulysses_sequence_parallel_size       >=1       >=1       whole      whole    whole
actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size   >=1 >=1     whole      whole    whole
actor_rollout_ref.actor.ppo_epochs                         >=1       >=1       whole      whole    whole
actor_rollout_ref.actor.ppo_mini_batch_size                >=1       >=1       whole      whole    whole
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu       >=1       >=1       divides    whole    whole
actor_rollout_ref.actor.ppo_max_token_len_per_gpu          >=1       >=1       unused     whole    whole
actor_rollout_ref.actor.optim.lr                           >=0       still     number     rate     number
actor_rollout_ref.actor.ulysses_sequence_parallel_size     >=1       >=1       whole      whole    whole
actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size >=1 >=1     whole      whole    whole
critic.ppo_epochs                                          >=1       >=1       whole      whole    whole
critic.ppo_mini_batch_size                                 >=1       >=1       whole      whole    whole
critic.ppo_infer_max_token_len_per_gpu                     >=1       >=1       whole      whole    whole
critic.fsdp.ulysses_sequence_parallel_size                 >=1       >=1       whole      whole    whole
"""
ROWS = {key: cells for key, *cells in map(str.split, TABLE.strip().splitlines()[1:])}


def with_value(run: ComposeRun, key: str, value: str) -> DictConfig:
    critic = ("algorithm.adv_estimator=gae", "critic.model.path=${actor_rollout_ref.model.path}")
    samples = key.endswith("val_kwargs.temperature") and value == "0.5"
    sampled = ("actor_rollout_ref.rollout.val_kwargs.do_sample=True",)
    return run(*(critic if key.startswith("critic.") else sampled if samples else ()), f"++{key}={value}")


@pytest.mark.parametrize("key", ROWS)
def test_every_number_of_verl_s_means_what_it_means_there_or_is_refused(run, key):
    end = "model" if key.startswith("data.") else "agent loop and tools"  # the data is looked at in between
    for value, cell in zip(VALUES, ROWS[key], strict=True):
        checks = takewhile(lambda found: found.name != end, findings(with_value(run, key, value)))
        errors = [str(found.error) for found in checks if found.error is not None]
        if cell in REFUSED:
            assert any(error.startswith(f"{key}=") and REFUSED[cell] in error for error in errors), (value, errors)
        else:
            assert not errors, value


def test_the_table_has_every_number_that_is_checked():
    assert NUMBERS.keys() | CRITIC_NUMBERS.keys() <= ROWS.keys()


@pytest.mark.parametrize("keep", [-1, 0, None, 1, 3])
def test_as_many_checkpoints_are_kept_as_verl_keeps(keep, monkeypatch):
    manager = BaseCheckpointManager.__new__(BaseCheckpointManager)
    manager.previous_saved_paths = []
    monkeypatch.setattr(manager, "remove_previous_save_local_path", lambda paths: None)
    for step in range(6):
        manager.ensure_checkpoint_capacity(keep)
        manager.register_checkpoint(f"step {step}", keep)
    kept = checkpoints_to_keep(OmegaConf.create({"trainer": {"max_actor_ckpt_to_keep": keep}}))
    assert len(manager.previous_saved_paths) == (6 if kept is None else kept)


def test_a_limit_below_one_is_none_as_in_verl(run):
    limits = [AsyncDAPOConfig.from_hydra(run(f"algorithm.filter_groups.max_num_gen_batches={n}")) for n in (-1, 0, 2)]
    assert [options.filter.max_num_gen_batches for options in limits] == [0, 0, 2]
