"""Options that do not go together are refused before Ray starts, with a message that names key, value and remedy."""

import pytest

from ..support.composed_runs import refusal

CRITIC = ["algorithm.adv_estimator=gae", "critic.model.path=a/model"]

# (overrides, what the message must contain)
BAD_COMBINATIONS = [
    (
        ["async_dapo.importance_sampling=bypass", "algorithm.rollout_correction.loss_type=reinforce"],
        "algorithm.rollout_correction.rollout_is=None: loss_type=reinforce has no ratio of its own",
    ),
    (
        ["async_dapo.importance_sampling=bypass", "actor_rollout_ref.actor.policy_loss.loss_mode=gpg"],
        "actor_rollout_ref.actor.policy_loss.loss_mode=gpg: has no ratio",
    ),
    (
        ["async_dapo.importance_sampling=balance", "async_dapo.max_staleness=null"],
        "async_dapo.max_staleness=None: async_dapo.importance_sampling=balance keeps the weights of so many versions",
    ),
    (
        ["async_dapo.importance_sampling=balance", "actor_rollout_ref.actor.strategy=fsdp"],
        "actor_rollout_ref.actor.strategy=fsdp: async_dapo.importance_sampling=balance exchanges FSDP2's weights",
    ),
    (
        ["async_dapo.importance_sampling=balance", "algorithm.rollout_correction.rollout_is_threshold=null"],
        "algorithm.rollout_correction.rollout_is_threshold=None: verl would leave the weights out",
    ),
    (
        ["reward.reward_model.enable=True", "reward.reward_model.enable_resource_pool=True"],
        "reward.reward_model.rollout.free_cache_engine=True: verl would put the reward model's engines to sleep",
    ),
    (
        [
            "reward.reward_model.enable=True",
            "reward.reward_model.enable_resource_pool=True",
            "reward.reward_model.rollout.free_cache_engine=False",
            "reward.custom_reward_function.path=null",
        ],
        "reward.custom_reward_function.path=None: verl's agent loops cannot read the score of a reward model alone",
    ),
    (
        ["trainer.val_only=True", "trainer.val_before_train=False"],
        "trainer.val_only=True: is ignored without trainer.val_before_train=True",
    ),
    (
        ["data.train_batch_size=12"],
        "actor_rollout_ref.actor.ppo_mini_batch_size=8: must divide data.train_batch_size=12",
    ),
    (
        ["actor_rollout_ref.actor.ppo_mini_batch_size=1", "trainer.n_gpus_per_node=8"],
        "actor_rollout_ref.actor.ppo_mini_batch_size=1: times rollout.n=4 trajectories must be a multiple of the 8 "
        "data-parallel ranks; set a multiple of 2",
    ),
    (
        ["actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=63"],
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=63: must be >= 64",
    ),
    (
        [
            "actor_rollout_ref.actor.use_kl_loss=True",
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=5",
        ],
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=5: must divide the 32 trajectories that a rank gets; "
        "or set actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True",
    ),
    (
        [
            "actor_rollout_ref.actor.use_kl_loss=True",
            "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True",
            "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=63",
        ],
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=63: must be >= 64",
    ),
    (
        [*CRITIC, "critic.ppo_mini_batch_size=6"],
        "critic.ppo_mini_batch_size=6: must divide data.train_batch_size=8",
    ),
    (
        [*CRITIC, "+critic.ppo_infer_max_token_len_per_gpu=63"],
        "critic.ppo_infer_max_token_len_per_gpu=63: must be >= 64",
    ),
    (
        [*CRITIC, "data.max_response_length=32737"],
        "critic.ppo_infer_max_token_len_per_gpu=32768: must be >= 32769",
    ),
    (
        [*CRITIC, "critic.ppo_max_token_len_per_gpu=8192"],
        "critic.ppo_max_token_len_per_gpu=8192: must be 32768: another value would be ignored; use critic.ppo_infer",
    ),
    (
        ["async_dapo.max_loads_per_server=1000", "actor_rollout_ref.rollout.max_num_seqs=512"],
        "async_dapo.max_loads_per_server=1000: must be below 1000",
    ),
    (
        ["async_dapo.max_loads_per_server=2016", "actor_rollout_ref.rollout.max_num_seqs=2000"],
        "async_dapo.max_loads_per_server=2016: must be below 2016",
    ),
    (
        [
            "async_dapo.max_loads_per_server=4112",
            "actor_rollout_ref.rollout.max_num_seqs=512",
            "actor_rollout_ref.rollout.data_parallel_size=8",
            "trainer.n_gpus_per_node=8",
        ],
        "async_dapo.max_loads_per_server=4112: must be below 4112",
    ),
    (
        ["reward.reward_kwargs.overlong_buffer_cfg.enable=True", "reward.reward_kwargs.overlong_buffer_cfg.len=0"],
        "reward.reward_kwargs.overlong_buffer_cfg.len=0: must be in 1..32; set overlong_buffer_cfg.enable=False",
    ),
    (
        ["reward.reward_kwargs.overlong_buffer_cfg.enable=True", "reward.reward_manager.name=naive"],
        "reward.reward_kwargs.overlong_buffer_cfg.enable=True: is ignored by reward.reward_manager.name=naive",
    ),
    (
        ["reward.reward_kwargs.overlong_buffer_cfg.enable=True", "reward.reward_kwargs.max_resp_len=64"],
        "reward.reward_kwargs.max_resp_len=64: must equal data.max_response_length=32",
    ),
    (
        ["algorithm.rollout_correction.bypass_mode=True", "algorithm.rollout_correction.rollout_is=token"],
        "algorithm.rollout_correction.rollout_is=token: PPO's ratio is the importance weight in bypass mode",
    ),
    (
        ["algorithm.rollout_correction.bypass_mode=True", "async_dapo.importance_sampling=decoupled"],
        "algorithm.rollout_correction.bypass_mode=True: contradicts async_dapo.importance_sampling=decoupled",
    ),
    (
        ["algorithm.rollout_correction.rollout_is=tokens"],
        "algorithm.rollout_correction.rollout_is=tokens: must be one of token, sequence; did you mean token?",
    ),
    (
        ["algorithm.rollout_correction.rollout_is=geometric"],
        "algorithm.rollout_correction.rollout_is=geometric: must be one of token, sequence",
    ),
    (
        ["algorithm.rollout_correction.rollout_is_threshold=0"],
        "algorithm.rollout_correction.rollout_is_threshold=0: verl says: rollout_is_threshold upper bound must be "
        "positive, got 0.0; set a number > 0, or lower_upper, such as 0.5_2.0",
    ),
    (
        ["async_dapo.importance_sampling=bypass", "algorithm.rollout_correction.loss_type=ppo-clip"],
        "algorithm.rollout_correction.loss_type=ppo-clip: must be one of ppo_clip, reinforce; did you mean ppo_clip?",
    ),
    (
        [
            "async_dapo.importance_sampling=bypass",
            "algorithm.rollout_correction.loss_type=reinforce",
            "algorithm.rollout_correction.rollout_is=token",
            "algorithm.rollout_correction.rollout_is_threshold=null",
        ],
        "algorithm.rollout_correction.rollout_is_threshold=None: verl would leave the weights out",
    ),
    (
        [
            "algorithm.rollout_correction.rollout_rs='token_k1,geometric'",
            "algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0",
        ],
        "algorithm.rollout_correction.rollout_rs=geometric: must be one of seq_max_k2, seq_max_k3, ",
    ),
    (
        ["algorithm.rollout_correction.rollout_rs=token_k1", "algorithm.rollout_correction.rollout_rs_threshold=0.5"],
        "algorithm.rollout_correction.rollout_rs_threshold=0.5: verl says: Thresholds for option 'token_k1' must be "
        "lower <= upper, got 0.5; set a number > 0 for each mask of rollout_rs, or lower_upper for those that end",
    ),
    (
        ["algorithm.rollout_correction.rollout_rs=token_k3"],
        "algorithm.rollout_correction.rollout_rs_threshold=None: verl says: rollout_rs_threshold must be provided",
    ),
    (
        [
            "async_dapo.importance_sampling=bypass",
            "async_dapo.max_tokens_per_round=4",
            "algorithm.rollout_correction.rollout_rs=token_k3",
            "algorithm.rollout_correction.rollout_rs_threshold=0.1",
        ],
        "async_dapo.max_tokens_per_round=4: a trajectory may be set aside until its group's tokens are older than "
        "async_dapo.max_staleness=4",
    ),
    (
        [
            "async_dapo.importance_sampling=bypass",
            "algorithm.rollout_correction.rollout_rs=seq_mean_k3",
            "algorithm.rollout_correction.rollout_rs_threshold=0.1",
            "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
        ],
        "actor_rollout_ref.actor.policy_loss.loss_mode=gspo: is replaced by verl's bypass loss",
    ),
    (
        ["trainer.save_freq=10", "actor_rollout_ref.actor.checkpoint.save_contents=[model,hf_model]"],
        "actor_rollout_ref.actor.checkpoint.save_contents=['model', 'hf_model']: must hold model, optimizer, extra",
    ),
    (
        ["actor_rollout_ref.actor.checkpoint.load_contents=[model]"],
        "actor_rollout_ref.actor.checkpoint.load_contents=['model']: must hold model, optimizer, extra",
    ),
    (
        [*CRITIC, "trainer.save_freq=10", "critic.checkpoint.save_contents=[hf_model]"],
        "critic.checkpoint.save_contents=['hf_model']: must hold model, optimizer, extra",
    ),
    (
        ["+trainer.remove_previous_ckpt_in_save=True"],
        "trainer.remove_previous_ckpt_in_save=True: must be null or False: verl would delete the model before the next "
        "checkpoint is complete; use trainer.max_actor_ckpt_to_keep=1",
    ),
    (
        [
            "async_dapo.drafts=siblings",
            "++actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config={method:ngram,num_speculative_tokens:3}",
        ],
        "actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config={'method': 'ngram', "
        "'num_speculative_tokens': 3}: async_dapo.drafts=siblings takes its place; leave one of them out",
    ),
    (["custom_reward_function.path=a.py"], "custom_reward_function.path=a.py: verl's V1 trainer does not read"),
    (["reward_model.reward_manager=dapo"], "reward_model.reward_manager=dapo: verl's V1 trainer does not read"),
    (["sandbox_fusion.url=http://sandbox"], "sandbox_fusion.url=http://sandbox: verl's V1 trainer does not read"),
    (["reward_model.rollout.name=vllm"], "reward_model.rollout.name=vllm: verl's V1 trainer does not read"),
]


@pytest.mark.parametrize(("overrides", "message"), BAD_COMBINATIONS, ids=[" ".join(o) for o, _ in BAD_COMBINATIONS])
def test_a_bad_combination_is_refused_with_key_value_and_remedy(run, overrides, message):
    assert message in refusal(run, *overrides)
