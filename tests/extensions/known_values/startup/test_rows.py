"""Options with which a run ends late, or wastes what it has, are refused."""

import pytest

from recipe.async_dapo.extensions.known_values.rows import ROWS

from ....support.composed_runs import of_options
from ....support.refusals import AFTER_RULES, assert_refused, in_full

EXAMPLES = """
rollout.val_kwargs.do_sample=True -> rollout.val_kwargs.do_sample=False
rollout.val_kwargs.temperature=1 -> rollout.val_kwargs.do_sample=True
rollout.val_kwargs.n=4 -> rollout.val_kwargs.n=1
gae trainer.max_critic_ckpt_to_keep=1 -> trainer.max_actor_ckpt_to_keep=1
ranks actor.ulysses_sequence_parallel_size=3 -> actor.ulysses_sequence_parallel_size=4
ref trainer.n_gpus_per_node=4 ref.ulysses_sequence_parallel_size=3 -> ref.ulysses_sequence_parallel_size=2
gae ranks critic.fsdp.ulysses_sequence_parallel_size=3 -> critic.fsdp.ulysses_sequence_parallel_size=4
ref ref.strategy=megatron -> ref.strategy=fsdp2
gae critic.strategy=fsdp3 -> critic.strategy=fsdp2
ranks actor.fsdp_config.fsdp_size=3 -> actor.fsdp_config.fsdp_size=4
ref trainer.n_gpus_per_node=4 ref.fsdp_config.fsdp_size=0 -> ref.fsdp_config.fsdp_size=2
gae ranks critic.fsdp.fsdp_size=5 -> critic.fsdp.fsdp_size=-1
megatron actor.megatron.expert_model_parallel_size=3 -> actor.megatron.expert_model_parallel_size=1
megatron ref ref.megatron.expert_model_parallel_size=3 -> ref.megatron.expert_model_parallel_size=1
megatron gae critic.strategy=megatron critic.megatron.tensor_model_parallel_size=2 critic.experts=2 -> critic.experts=1
model.use_liger=True -liger_kernel -> model.use_liger=False
actor.ppo_micro_batch_size_per_gpu=5 -> actor.ppo_micro_batch_size_per_gpu=4
rollout.log_prob_micro_batch_size_per_gpu=5 -> rollout.log_prob_micro_batch_size_per_gpu=4
ref ref.log_prob_micro_batch_size_per_gpu=5 -> ref.log_prob_micro_batch_size_per_gpu=4
dynamic actor.ppo_max_token_len_per_gpu=63 -> actor.ppo_max_token_len_per_gpu=64
dynamic rollout.log_prob_max_token_len_per_gpu=63 -> rollout.log_prob_max_token_len_per_gpu=64
ref ref.log_prob_use_dynamic_bsz=True ref.log_prob_max_token_len_per_gpu=63 -> ref.log_prob_max_token_len_per_gpu=64
gae data.max_response_length=32737 -> ++critic.ppo_infer_max_token_len_per_gpu=32769
megatron actor.ppo_micro_batch_size_per_gpu=null -> actor.ppo_micro_batch_size_per_gpu=4
rollout.tensor_model_parallel_size=2 -> trainer.n_gpus_per_node=2
vllm.worker_extension_cls=mine.Extension -> vllm.worker_extension_cls=null
vllm.enable_expert_parallel=True -> vllm.enable_expert_parallel=False
rollout.moe_load_balance_metrics_interval=1 -> rollout.enable_rollout_routing_replay=True
megatron bypass actor.megatron.router_replay.mode=R2 -> decoupled
model_engine=veomni bypass actor.veomni.router_replay.mode=R2 -> decoupled
actor.policy_loss.loss_mode=dro -> ++actor.policy_loss.dro_beta=0.1
overlong overlong.len=33 -> overlong.len=8
"""
LINES = EXAMPLES.strip().splitlines()


@pytest.mark.parametrize(("rule", "line"), [*zip(ROWS, LINES, strict=True)], ids=LINES)
def test_a_row_is_refused_with_key_value_and_remedy_and_its_neighbour_passes(run, monkeypatch, rule, line):
    assert_refused(run, monkeypatch, rule, line)


@pytest.mark.parametrize(("gpus", "is_refused"), [(8, True), (16, False), (24, True), (32, False)])
def test_megatrons_parallel_sizes_count_together(run, gpus, is_refused):
    sizes = in_full("actor.megatron.tensor_model_parallel_size=4 actor.megatron.pipeline_model_parallel_size=4")
    errors = of_options(run("model_engine=megatron", f"trainer.n_gpus_per_node={gpus}", *sizes), before=AFTER_RULES)
    said = (
        f"trainer.n_gpus_per_node={gpus}: times trainer.nnodes makes {gpus} training GPUs, no multiple of the 16 that"
    )
    assert any(error.startswith(said) for error in errors) is is_refused
