"""Options that the core refuses: a line for each row of `RULES` and `TOGETHER`, in order.

Overrides that it refuses -> what makes them right. `-name` is a package that is missing. Keys are shortened as in
`FULL`, several overrides as in `SHORT`.
"""

EXAMPLES = """
trainer.critic_warmup=5 -> trainer.critic_warmup=0
trainer.val_only=True trainer.val_before_train=False -> trainer.val_before_train=True
trainer.resume_from_path=/a/global_step_3 -> trainer.resume_mode=resume_path
saves actor.checkpoint.save_contents=[model,hf_model] -> trainer.resume_mode=disable
actor.checkpoint.load_contents=[model] -> trainer.resume_mode=disable
gae saves critic.checkpoint.save_contents=[hf_model] -> critic.checkpoint.save_contents=[model,optimizer,extra]
gae critic.checkpoint.load_contents=[model] -> trainer.resume_mode=disable
saves anew actor.checkpoint.save_contents=[optimizer] -> actor.checkpoint.save_contents=[hf_model]
gae saves anew critic.checkpoint.save_contents=[] -> critic.checkpoint.save_contents=[model]
ranks actor.strategy=fsdp actor.fsdp_config.fsdp_size=1 -> actor.strategy=fsdp2
gae ranks critic.strategy=fsdp critic.fsdp.fsdp_size=1 -> critic.fsdp.fsdp_size=2
actor.fsdp_config.dtype=float16 -> ++actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype:fp16}
ref ref.fsdp_config.dtype=float32 -> ref.fsdp_config.dtype=bfloat16
gae critic.fsdp.dtype=float16 -> critic.fsdp.dtype=bfloat16
actor.ppo_mini_batch_size=3 -> actor.ppo_mini_batch_size=4
gae critic.ppo_mini_batch_size=6 -> critic.ppo_mini_batch_size=4
ranks actor.ppo_mini_batch_size=1 -> actor.ppo_mini_batch_size=2
gae ranks critic.ppo_mini_batch_size=1 -> critic.ppo_mini_batch_size=2
rollout.prompt_length=null -> rollout.prompt_length=32
rollout.response_length=16 -> rollout.response_length=32
megatron ref ref.megatron.tensor_model_parallel_size=1 -> ref.megatron.tensor_model_parallel_size=2
megatron ref ref.megatron.pipeline_model_parallel_size=2 -> ref.megatron.pipeline_model_parallel_size=1
megatron ref ref.megatron.context_parallel_size=2 -> ref.megatron.context_parallel_size=1
algorithm.use_pf_ppo=True -> algorithm.use_pf_ppo=False
algorithm.filter_groups.metric=seq_reward -> algorithm.filter_groups.metric=score
algorithm.adv_estimator=opo -> async_dapo.max_staleness=null
algorithm.use_kl_in_reward=True ref.log_prob_micro_batch_size_per_gpu=8 -> async_dapo.max_staleness=null
actor.loss_agg_mode=seq-mean-token-sum-norm -> actor.loss_scale_factor=32
bypass correction.rollout_is=token -> correction.loss_type=reinforce
bypass actor.policy_loss.loss_mode=gpg -> decoupled
actor.policy_loss.loss_mode=dppo_tv actor.clip_ratio_low=0.15 -> actor.ppo_mini_batch_size=2
bypass actor.policy_loss.loss_mode=dppo_kl -> actor.clip_ratio_high=0.05
actor.policy_loss.loss_mode=geo_mean -> actor.policy_loss.loss_mode=gspo
bypass mask actor.policy_loss.loss_mode=gspo -> actor.policy_loss.loss_mode=vanilla
bypass mask async_dapo.max_tokens_per_round=4 -> async_dapo.max_staleness=null
none correction.rollout_is=token -> decoupled
none mask -> correction.rollout_rs=null
correction.bypass_mode=True decoupled -> bypass
correction.loss_type=reinforce -> correction.loss_type=ppo_clip
bypass actor.policy_loss.loss_mode=bypass_mode -> actor.policy_loss.loss_mode=vanilla
bypass correction.loss_type=reinforce -> correction.rollout_is=token
decoupled correction.rollout_is_threshold=null -> correction.rollout_is_threshold=2.0
correction.rollout_is_threshold=0.5_5 -> correction.rollout_is_threshold=0.5_5.0
correction.rollout_is_threshold=nan_2.0 -> correction.rollout_is_threshold=0.5_2.0
correction.rollout_rs=token_k1 correction.rollout_rs_threshold=0.5_nan -> correction.rollout_rs_threshold=0.5_2.0
async_dapo.max_concurrent_prompts=50000 async_dapo.rollout_pool_size=null -> async_dapo.rollout_pool_size=auto
async_dapo.rollout_pool_size=10000000 -> async_dapo.rollout_pool_size=10
async_dapo.max_loads_per_server=2016 rollout.max_num_seqs=2000 -> async_dapo.max_loads_per_server=2015
rollout.nnodes=1 -> rollout.nnodes=0
+rollout.enable_sleep_mode=False -> rollout.free_cache_engine=False
megatron rollout.enable_rollout_routing_replay=True -> actor.megatron.router_replay.mode=R3
replay vllm.decode_context_parallel_size=2 -> rollout.enable_rollout_routing_replay=False
megatron actor.megatron.router_replay.mode=R3 -> rollout.enable_rollout_routing_replay=True
model_engine=veomni actor.veomni.router_replay.mode=R3 -> rollout.enable_rollout_routing_replay=True
model_engine=veomni model.lora_rank=8 -> model.lora_rank=0
megatron model.lora_rank=8 -> model.lora.rank=8
model.lora.rank=8 -> model.lora_rank=8
model.lora_adapter_path=/an/adapter -> model.lora_rank=8
model.lora_rank=8 rollout.quantization=fp8 -> model.lora.merge=True
rollout.quantization=fp8 none -> decoupled
vllm.quantization=fp8 bypass -> decoupled
vllm.kv_cache_dtype=fp8 correction.rollout_is_threshold=0.5_3.0 -> correction.rollout_is_threshold=0.5_2.0
vllm.kv-cache-dtype=fp8 host_kv -> async_dapo.rollout_strategy=partial async_dapo.host_kv_gib=null
vllm.kv_cache_dtype=fp8 vllm.calculate_kv_scales=True -> vllm.calculate_kv_scales=False
vllm.moe_backend=flashinfer_trtllm -> vllm.moe_backend=triton
vllm.hf_overrides={a:1} rollout.quantization=fp8 -> vllm.hf_overrides=null
reward_model reward.reward_model.enable_resource_pool=False -> reward.reward_model.enable_resource_pool=True
reward_model reward.reward_model.rollout.free_cache_engine=True -> reward.reward_model.rollout.free_cache_engine=False
reward_model reward.custom_reward_function.path=null -> reward.custom_reward_function.path=a.py
reward.reward_manager.name=remote async_dapo.reward.processes=0 -> reward.reward_manager.name=naive
overlong reward.reward_manager.name=naive -> reward.reward_manager.name=dapo
overlong reward.reward_kwargs.max_resp_len=64 -> reward.reward_kwargs.max_resp_len=32
algorithm.filter_groups.metric=null -> algorithm.filter_groups.enable=False
rollout.n=1 -> algorithm.filter_groups.enable=False
async_dapo.rollout_strategy=discard async_dapo.max_tokens_per_round=16 -> async_dapo.rollout_strategy=partial
"""
LINES = EXAMPLES.strip().splitlines()
