"""Options with which a run ends after minutes or hours, does a work for nothing, or leaves an option out that learns
nothing: rows as those of `startup/rules.py`.
"""

from functools import partial
from importlib.util import find_spec

from omegaconf import OmegaConf
from verl.workers.config import CriticConfig

from ...config.checkpoint_options import checkpoints_to_keep
from ...config.values import Rule
from ...config.verl_keys import ACTOR, MODEL, MODELS, REF, ROLLOUT, SHARDS, VLLM
from ...startup.facts import BYPASS, Run

_VALIDATION = ROLLOUT + "val_kwargs."
_OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg."
_DYNAMIC = ACTOR + "use_dynamic_bsz"
_MICRO = (
    ("actor", ACTOR + "ppo_", _DYNAMIC),
    ("actor", ROLLOUT + "log_prob_", _DYNAMIC),
    ("ref", REF + "log_prob_", REF + "log_prob_use_dynamic_bsz"),
)
_LONGEST = (
    *((model, f"{sizes}max_token_len_per_gpu", dynamic) for model, sizes, dynamic in _MICRO),
    ("critic", "critic.ppo_infer_max_token_len_per_gpu", None),
)


def _is_short(it: Run, model: str, key: str, dynamic: str | None) -> bool:
    """A dynamic micro batch must hold the longest trajectory. Those of a critic are always dynamic."""
    value = OmegaConf.select(it.config, key, default=None if dynamic else CriticConfig.ppo_infer_max_token_len_per_gpu)
    acts = it.has[model] and (dynamic is None or it.get(dynamic))
    return acts and (value is None or value < it.least_tok[model])


def _leaves_some_over(it: Run, model: str) -> bool:
    return it.has[model] and it.training_gpus % it.held_by[model] != 0


def _is_of_another_engine(it: Run, model: str) -> bool:
    return it.builds[model] and it.strategy_of(model) not in it.strategies


def _makes_no_mesh(it: Run, model: str) -> bool:
    """Whether groups of so many ranks leave some over."""
    size = it.get(SHARDS[model])
    is_group = isinstance(size, int) and (
        size < 0 or size >= it.training_gpus or (size and not it.training_gpus % size)
    )
    return it.model_engine == "dp" and it.builds[model] and not (is_group and size)


def _spreads_no_experts(it: Run, model: str) -> bool:
    """Megatron's groups of experts: ranks of a pipeline stage are shared out anew."""

    def size(name: str) -> int:
        return it.get(f"{MODELS[model]}megatron.{name}_parallel_size") or 1

    tensor = it.get(f"{MODELS[model]}megatron.expert_tensor_parallel_size") or size("tensor_model")
    ranks = size("expert_model") * tensor * size("pipeline_model")
    return it.model_engine == "megatron" and it.builds[model] and bool(it.training_gpus % ranks)


def _is_uneven(it: Run, model: str, sizes: str, dynamic: str) -> bool:
    """A fixed micro batch must divide what a rank gets."""
    prompts = it.actor.ppo_mini_batch_size if sizes == ACTOR + "ppo_" else it.options.target_valid_groups
    value, per_rank = it.get(sizes + "micro_batch_size_per_gpu"), prompts * it.options.rollout_n // it.ranks[model]
    return it.has[model] and not it.get(dynamic) and (value is None or per_rank % value != 0)


# fmt: off
ROWS: tuple[Rule, ...] = (
    Rule(_VALIDATION + "do_sample", lambda it: it.validation.temperature == 0 and it.validation.do_sample,
         f"is ignored: verl's V1 trainer samples as {_VALIDATION}temperature says, and 0 is greedy; set False, or a "
         "temperature > 0"),
    Rule(_VALIDATION + "do_sample", lambda it: it.validation.temperature > 0 and not it.validation.do_sample,
         f"is ignored: verl's V1 trainer samples as {_VALIDATION}temperature={{it.validation.temperature}} says; set "
         "True, or that temperature to 0 for greedy answers"),
    Rule(_VALIDATION + "temperature", lambda it: it.validation.temperature == 0 and it.validation.n > 1,
         f"gives the same answer {{it.validation.n}} times; set {_VALIDATION}n=1, or a temperature > 0 and "
         f"{_VALIDATION}do_sample=True"),
    Rule("trainer.max_critic_ckpt_to_keep",
         lambda it: it.has["critic"] and it.trainer.max_critic_ckpt_to_keep is not None
         and checkpoints_to_keep(it.config, "critic") != checkpoints_to_keep(it.config),
         "is ignored: trainer.max_actor_ckpt_to_keep keeps checkpoints whole; leave it out"),
    *(Rule("trainer.n_gpus_per_node", partial(_leaves_some_over, model=model),
           f"times trainer.nnodes makes {{it.training_gpus}} training GPUs, no multiple of the {{it.held_by[{model}]}} "
           f"that the parallel sizes of {key.rstrip('.')} multiply to; change it, or one of these")
      for model, key in MODELS.items()),
    *(Rule(key + "strategy", partial(_is_of_another_engine, model=model),
           "is none of model_engine={it.model_engine}, which verl would look for in its workers; leave it out")
      for model, key in MODELS.items() if model != "actor"),
    *(Rule(key, partial(_makes_no_mesh, model=model),
           "makes no groups of equal size of the {it.training_gpus} training GPUs; set a number that divides them, or "
           "-1 for one group of all")
      for model, key in SHARDS.items()),
    *(Rule(key + "megatron.expert_model_parallel_size", partial(_spreads_no_experts, model=model),
           "times the pipeline's size, and the tensor parallel size of experts, does not divide the {it.training_gpus} "
           "training GPUs; change one of these")
      for model, key in MODELS.items()),
    Rule(MODEL + "use_liger", lambda it: it.model.use_liger and it.model_engine == "dp"
         and find_spec("liger_kernel") is None,
         "needs a package that is not installed; run: pip install liger-kernel, or set False"),
    *(Rule(sizes + "micro_batch_size_per_gpu", partial(_is_uneven, model=model, sizes=sizes, dynamic=dynamic),
           f"must divide the trajectories that a rank gets; or set {dynamic}=True")
      for model, sizes, dynamic in _MICRO),
    *(Rule(key, partial(_is_short, model=model, key=key, dynamic=dynamic),
           f"must be >= {{it.least_tok[{model}]}}: a trajectory can have {{it.longest_tok}} tokens, over "
           f"{{it.split_over[{model}]}} sequence-parallel ranks")
      for model, key, dynamic in _LONGEST),
    Rule(ACTOR + "ppo_micro_batch_size_per_gpu",
         lambda it: it.model_engine == "megatron" and not it.actor.use_dynamic_bsz
         and it.actor.ppo_micro_batch_size_per_gpu is None,
         f"set it, or {ACTOR}use_dynamic_bsz=True"),
    Rule(ROLLOUT + "tensor_model_parallel_size",
         lambda it: it.engine_gpus % it.gpus_per_engine and not it.options.is_separate,
         "engines of {it.gpus_per_engine} GPUs do not divide the {it.engine_gpus} of trainer.nnodes x "
         "trainer.n_gpus_per_node; set a size that does, such as 1"),
    Rule(VLLM + "worker_extension_cls", lambda it: it.vllm.get("worker_extension_cls"),
         "is the recipe's own: it brings the weights; leave it out"),
    Rule(VLLM + "enable_expert_parallel",
         lambda it: it.vllm.get("enable_expert_parallel") not in (None, (it.rollout.expert_parallel_size or 1) > 1),
         f"is ignored: verl sets it where {ROLLOUT}expert_parallel_size, now {{it.rollout.expert_parallel_size}}, is "
         "above 1; set that, and leave this out"),
    Rule(ROLLOUT + "moe_load_balance_metrics_interval",
         lambda it: it.rollout.moe_load_balance_metrics_interval and not it.rollout.enable_rollout_routing_replay,
         f"counts the experts that engines tell of; set {ROLLOUT}enable_rollout_routing_replay=True, or 0"),
    *(Rule(f"{ACTOR}{engine}.router_replay.mode",
           partial(lambda it, own: it.model_engine == own and it.replays == "R2" and it.corrects(BYPASS), own=engine),
           "takes experts that a pass of log-probs has noted, and async_dapo.importance_sampling=bypass has no such "
           f"pass; choose decoupled, or R3 with {ROLLOUT}enable_rollout_routing_replay=True")
      for engine in ("megatron", "veomni")),
    Rule(ACTOR + "policy_loss.dro_beta",
         lambda it: it.actor.policy_loss.loss_mode == "dro"
         and not (isinstance(beta := it.actor.policy_loss.dro_beta, int | float) and beta > 0),
         "loss_mode=dro fails without it after the first rollout; set a positive number, or another loss_mode"),
    Rule(_OVERLONG + "len", lambda it: it.overlong.enable and it.overlong.len > it.options.max_response_length,
         "is more than data.max_response_length={it.options.max_response_length}, the longest answer; lower it"),
)
# fmt: on
