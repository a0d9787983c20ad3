"""What the recipe relies on in verl 0.9.1 and TransferQueue, as data. To bump verl, see CONTRIBUTING.md.

`SIGNATURES`: functions we call, override or are called as. `SEAMS`: those of them that everything hangs on, which each
run of the tests looks at. `READ`: others, whose body we rely on as well, by digest of their source; when one changes,
read it again, and what the recipe does around it. `bump_check.py` compares all with what is installed.
"""

TOOL_LOOP = "verl.experimental.agent_loop.tool_agent_loop:"
TRAINER = "verl.trainer.ppo.v1.trainer_base:"
AGENT_LOOP = "verl.experimental.agent_loop.agent_loop:"
SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server:"
REWARD = "verl.experimental.reward_loop."
ADAPTER = "verl.workers.rollout.vllm_rollout.vllm_rollout:"
TRANSFER = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:"
TRAINING_WORKER = "verl.workers.engine_workers:"
CORRECTION = "verl.trainer.ppo.rollout_corr_helper:"
CLIENT = "verl.workers.rollout.llm_server:"
DATA_SET = "verl.utils.dataset.rl_dataset:RLHFDataset."
EXTENSION = "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension."

SIGNATURES = {
    # values of corrections
    CORRECTION + "_parse_rollout_is_threshold": "(threshold_spec)",
    CORRECTION + "_parse_rollout_rs_thresholds": "(options, threshold_spec)",
    # the client
    CLIENT + "LLMServerClient.__init__": "(self, config, load_balancer_handle=None, **kwargs)",
    CLIENT + "LLMServerClient.generate": (
        "(self, request_id, *, prompt_ids, sampling_params, image_data=None, video_data=None, audio_data=None, "
        "mm_processor_kwargs=None, **kwargs)"
    ),
    CLIENT + "LLMServerManager.get_client": "(self, client_cls=None, **kwargs)",
    # an agent loop's tokens
    AGENT_LOOP + "AgentLoopBase.ct_merge_assistant_token": (
        "(self, runtime_token_ids, assistant_token_ids, response_mask, response_logprobs=None, assistant_logprobs=None)"
    ),
    AGENT_LOOP + "AgentLoopBase.ct_merge_context_msg": (
        "(self, previous_messages, updated_messages, runtime_token_ids, response_mask, response_logprobs=None, "
        "tools=None)"
    ),
    # tools
    "verl.tools.function_tool:FunctionTool.__init__": "(self, name, fn, tool_schema, is_async=False)",
    "verl.tools.function_tool:FunctionTool.call": "(self, parameters)",
    "verl.tools.function_tool:normalize_function_tool_return": "(ret)",
    "verl.tools.base_tool:BaseTool.create": "(self, instance_id=None, **kwargs)",
    "verl.tools.base_tool:BaseTool.execute": "(self, instance_id, parameters, **kwargs)",
    "verl.tools.base_tool:BaseTool.calc_reward": "(self, instance_id, **kwargs)",
    "verl.tools.base_tool:BaseTool.release": "(self, instance_id, **kwargs)",
    # the servers
    "verl.workers.rollout.replica:RolloutReplicaRegistry.register": "(cls, name, loader)",
    SERVER + "vLLMHttpServer.__init__": (
        "(self, config, model_config, rollout_mode, workers, replica_rank, node_rank, gpus_per_node, nnodes, "
        "cuda_visible_devices, disaggregation_role='null', disaggregation_kv_transfer_config=None)"
    ),
    SERVER + "vLLMHttpServer.set_global_steps": "(self, global_steps)",
    SERVER + "vLLMReplica.__init__": (
        "(self, replica_rank, config, model_config, gpus_per_node=8, is_reward_model=False, is_teacher_model=False, "
        "name_suffix='')"
    ),
    SERVER + "vLLMHttpServer.launch_server": "(self, master_address=None, master_port=None, dp_rpc_port=None)",
    SERVER + "vLLMHttpServer._get_worker_extension_cls": "(self)",
    SERVER + "vLLMHttpServer._preprocess_engine_kwargs": "(self, engine_kwargs)",
    SERVER + "vLLMHttpServer._resolve_sleep_level": "(self)",
    "verl.workers.rollout.utils:get_max_position_embeddings": "(hf_config)",
    # both ends of a weight transfer
    EXTENSION + "_update_weights": "(self, weights, peft_config, base_sync_done)",
    SERVER + "vLLMReplica.sleep": "(self)",
    ADAPTER + "ServerAdapter.resume": "(self, tags)",
    ADAPTER + "ServerAdapter.release": "(self)",
    TRANSFER + "BucketedWeightSender.__init__": "(self, zmq_handle, bucket_size_mb=512, use_shm=False)",
    "verl.workers.rollout.utils:ensure_async_iterator": "(iterable)",
    # workers and manager
    AGENT_LOOP + "AgentLoopManager.create": "(cls, *args, **kwargs)",
    AGENT_LOOP + "AgentLoopManager.generate_sequences": "(self, prompts)",
    # the trainer
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.sample": "(self, global_steps, partition_id, batch_size)",
    TRAINER + "register_trainer": "(name)",
    TRAINER + "PPOTrainer.__init__": "(self, config)",
    TRAINER + "PPOTrainer.init": "(self)",
    TRAINER + "PPOTrainer.get_llm_client": "(self)",
    TRAINER + "PPOTrainer.get_teacher_client": "(self)",
    TRAINER + "PPOTrainer.get_reward_handles": "(self)",
    TRAINER + "PPOTrainer._build_replay_buffer": "(self)",
    TRAINER + "PPOTrainer.on_init_end": "(self)",
    TRAINER + "PPOTrainer.prepare_step": "(self)",
    TRAINER + "PPOTrainer.on_sample_end": "(self)",
    TRAINER + "PPOTrainer.on_step_end": "(self)",
    TRAINER + "PPOTrainer.on_validate_begin": "(self)",
    TRAINER + "PPOTrainer.on_validate_end": "(self)",
    TRAINER + "PPOTrainer._maybe_log_val_generations": "(self, inputs, outputs, scores)",
    TRAINER + "PPOTrainer._fetch_one_gen_batch": "(self)",
    TRAINER + "PPOTrainer._reissue_inflight_prompts": "(self, partition_id='train')",
    TRAINER + "PPOTrainer._stop_rollout_profiling": "(self)",
    "verl.checkpoint_engine:CheckpointEngineManager.__init__": "(self, config, actor_wg, replicas)",
    "verl.checkpoint_engine:CheckpointEngineManager.sleep_replicas": "(self)",
    # corrections for older versions
    "verl.trainer.ppo.rollout_corr_helper:compute_rollout_correction_weights": (
        "(log_ratio, response_mask, rollout_is='token', rollout_is_threshold=2.0, rollout_is_batch_normalize=False)"
    ),
    "verl.workers.utils.padding:response_from_nested": "(tensor, response_mask)",
    TRAINING_WORKER + "ActorRolloutRefWorker.set_loss_fn": "(self, loss_fn)",
    "verl.utils.seqlen_balancing:get_seqlen_balanced_partitions": "(seqlen_list, k_partitions, equal_size)",
    "verl.utils.seqlen_balancing:calculate_workload": "(seqlen_list)",
    # helpers
    "verl.utils:normalize_token_ids": "(tokenized_output)",
    "verl.utils.config:validate_config": "(config, use_reference_policy, use_critic)",
    "verl.utils.debug:marked_timer": "(name, timing_raw, color=None, domain=None, category=None)",
    "verl.utils.device:auto_set_device": "(config)",
    "verl.utils.tensordict_utils:list_of_dict_to_tensordict": "(list_of_dicts)",
    "verl.utils.import_utils:load_extern_object": "(module_path, object_name)",
    "verl.trainer.ppo.utils:create_rl_dataset": (
        "(data_paths, data_config, tokenizer, processor, is_train=True, max_samples=-1)"
    ),
    "verl.utils.tokenizer.continuous_token_wiring:create_continuous_token_builder": (
        "(tokenizer, *, model_family='auto', hf_model_type=None, chat_template_kwargs=None, mm_processor_kwargs=None, "
        "processor=None, **builder_kwargs)"
    ),
    "verl.trainer.ppo.utils:need_critic": "(config)",
    "verl.trainer.ppo.utils:need_reference_policy": "(config)",
    # the data plane
    "vllm.v1.engine.async_llm:AsyncLLM.is_sleeping": "(self)",
    "transfer_queue:close": "()",
    "transfer_queue:async_kv_batch_put": "(keys, partition_id, fields=None, tags=None, data_parser=None)",
    "transfer_queue:kv_batch_put": "(keys, partition_id, fields=None, tags=None, data_parser=None)",
    "transfer_queue:kv_batch_get": "(keys, partition_id, select_fields=None)",
    "transfer_queue:kv_list": "(partition_id=None)",
    "transfer_queue:kv_clear": "(keys, partition_id)",
}

SEAMS = (
    CLIENT + "LLMServerClient.generate",
    SERVER + "vLLMHttpServer.__init__",
    SERVER + "vLLMReplica.__init__",
    AGENT_LOOP + "AgentLoopManager.create",
    AGENT_LOOP + "AgentLoopManager.generate_sequences",
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.sample",
    TRAINER + "PPOTrainer.init",
    TRAINER + "PPOTrainer.prepare_step",
    TRAINER + "PPOTrainer.on_sample_end",
    "verl.checkpoint_engine:CheckpointEngineManager.__init__",
    TRANSFER + "BucketedWeightSender.__init__",
    "transfer_queue:kv_batch_put",
    "transfer_queue:kv_batch_get",
)

READ = {
    TOOL_LOOP + "ToolAgentLoop._call_tool": "d5f71f92a054",  # an instance for each call; errors become text
    TOOL_LOOP + "ToolAgentLoop._handle_processing_tools_state": "3a8638ea4041",  # begins calls in their order
    TRAINER + "PPOTrainer.fit": "07f6014eb3d2",  # order of the hooks; kv_clear of the trained batch
    TRAINER + "PPOTrainer.step": "2f50a6e5ee62",  # prepare_step opens the round
    TRAINER + "PPOTrainer._step_once": "9dee5bcf0174",  # one `sample` of the train partition a step
    TRAINER + "PPOTrainer._validate": "c83fac6b28db",  # generate_sequences, then `sample` of the val partition
    TRAINER + "PPOTrainer._init_dataloader": "6de488503445",  # draws prompt by prompt
    TRAINER + "PPOTrainer._save_checkpoint": "9527bf5c9f5d",  # marks the checkpoint as complete last
    TRAINER + "PPOTrainer._load_checkpoint": "4fdb15a2efff",  # finds the folder that our pool file is in
    TRAINER + "PPOTrainer._compute_advantage": "41cfe4eb0eae",  # leaves old_log_probs in the store
    CORRECTION
    + "compute_rollout_correction_and_rejection_mask": "e32e53733e1b",  # raises where no token is in the mask
    "verl.trainer.ppo.core_algos:compute_policy_loss_bypass_mode": "6677936691b4",  # two types of loss
    DATA_SET + "_read_files_and_tokenize": "16d775f64c3c",  # joins files, then filters
    DATA_SET + "_build_messages": "86dbfeb08a33",  # writes pictures into the column of the prompt
    DATA_SET + "maybe_filter_out_long_prompts": "4ce51057d664",  # asks for `filter`
    AGENT_LOOP + "AgentLoopBase.ct_build_initial_tokens": "a7a123cd80e2",  # cuts prompts
    AGENT_LOOP + "AgentLoopWorker._run_agent_loop": "04636a02f786",  # what an agent loop is made from
    AGENT_LOOP + "AgentLoopWorker._compute_score": "876c6391f9a3",  # skips outputs that have a score
    AGENT_LOOP + "AgentLoopWorker._compute_multi_modal_inputs": "ed0639c3ee89",  # what depends on tokens, and what not
    AGENT_LOOP + "AgentLoopWorker._compute_position_ids": "ac5ca96ac82e",  # takes `mm_token_type_ids` out
    AGENT_LOOP + "AgentLoopBase.process_multi_modal_info": "25604d7678b6",  # asks the class of the data set
    "verl.utils.model:extract_multi_modal_inputs": "c16e25c861f5",  # calls `in` and `items` of each row's inputs
    AGENT_LOOP + "AgentLoopManager._init_agent_loop_workers": "563147c55209",
    AGENT_LOOP + "AgentLoopManager.__init__": "a67e0bfed5dd",  # keeps a class of workers that is set before
    AGENT_LOOP + "AgentLoopWorker.__init__": "8e77dd9fe7ef",  # gives the client its `tokenizer`; keeps reward workers
    AGENT_LOOP + "AgentLoopOutput.as_dict": "ee57aa610c44",
    SERVER + "vLLMHttpServer.generate": "2dcab33b7df5",  # keeps the last chunk of the stream
    SERVER + "vLLMHttpServer.run_server": "1603d0b057a1",  # sets `engine`; serves HTTP at `_server_address`
    SERVER + "vLLMReplica.launch_servers": "14cac3e1de60",  # uses `server_class` and `max_concurrency`
    ADAPTER + "ServerAdapter.__init__": "da8ff65347d3",  # makes `zmq_handle`
    EXTENSION + "update_weights_from_ipc": "16a17792d923",  # answers every bucket before it returns
    EXTENSION + "_get_zmq_handle": "d9679e8b6063",
    TRAINING_WORKER + "ActorRolloutRefWorker.init_model": "64953c5f8154",  # makes `rollout`
    TRAINING_WORKER + "TrainingWorker.train_mini_batch": "7d88d70f0978",  # each rank cuts its part in order
    "verl.workers.utils.losses:ppo_loss": "62886e3c04f7",  # reads `old_log_probs` and `rollout_is_weights` of its data
    "verl.utils.metric.utils:Metric.aggregate_dp": "a6f11d004486",  # averages a sum over ranks
    TRAINER + "PPOTrainer._balance_batch": "d402668022ad",  # over ranks, once a step
    TRAINING_WORKER + "ActorRolloutRefWorker.compute_log_prob": "3a408d7ab947",  # leaves `log_probs` in the store
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.forward_backward_batch": "d0524752f46c",  # sums `loss_mask`
    "verl.utils.fsdp_utils:offload_fsdp2_model_to_cpu": "e6318a206e98",  # does not wait for its copies
    TRAINER + "PPOTrainer._init_resource_pool_mgr": "8ef4d4509ac6",  # rehearsal: roles and their pools
    TRAINER + "PPOTrainer._compute_old_log_prob": "11c50dc9b11c",  # calls the worker unless bypassed
    TRAINER + "PPOTrainer._update_actor": "195e6c4b0bca",  # rehearsal: metrics that the worker returns
    CLIENT + "LLMServerManager._initialize_llm_servers": "8aebd7942ea6",  # rehearsal: stand-alone engines
    CLIENT + "FullyAsyncLLMServerClient.generate": "5a203917c118",  # planner: `ContinuingClient` does the same
    SERVER + "vLLMHttpServer.abort_all_requests": "e10b77b9884b",  # planner: waits for admissions
    "verl.trainer.ppo.v1.trainer_colocate_async:PPOTrainerColocateAsync": "047577914dbc",  # planner: its loop
    "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync": "1ccd7c9d6c9c",  # planner: its loop
    "verl.trainer.ppo.v1.trainer_separate_async:PPOTrainerSeparateAsync": "c4490c213941",  # planner: its loop
    "transfer_queue:init": "54b6c5609763",  # joins a controller that it finds
    TRAINER
    + "PPOTrainer._setup": "6c83ae2ee734",  # the checkpoint manager that ours takes the place of; the critic's batches
    "verl.checkpoint_engine:CheckpointEngineManager.update_weights": "b24b01a64e65",  # one call of all ranks
    ADAPTER + "ServerAdapter.update_weights": "9c2219a65177",  # what ours does in its place
    ADAPTER + "ServerAdapter._ensure_server_handle": "43a2af4e18c5",  # names of the server actors
    TRANSFER + "BucketedWeightSender.async_send_weights": "ae6afa1bed14",  # waits in its socket's methods only
    TRANSFER + "BucketedWeightSender._init_socket": "bf4e6cae1710",
    TRAINING_WORKER + "ActorRolloutRefWorker.update_weights": "4652480a1ff5",  # every rank gathers every tensor
    "verl.workers.rollout.router:get_router_handle": "d67fd438e332",
    # what the reward function is called with, on which thread, and that one of a name in a module can take its place
    "verl.trainer.ppo.reward:get_custom_reward_fn": "b62d5db67aec",
    "verl.trainer.ppo.reward:load_reward_manager": "5eb62f1279b5",
    REWARD + "reward_loop:RewardLoopWorker.compute_score": "087bcb216dc4",
    REWARD + "reward_manager.naive:NaiveRewardManager.run_single": "1d88fdb3baef",
    REWARD + "reward_manager.dapo:DAPORewardManager.run_single": "3374ead73fbf",
    REWARD + "reward_manager.remote:RemoteRewardManager.run_single": "6ea5e24f975f",
    "verl.trainer.main_ppo:run_ppo": "416ebffb70c7",
}
