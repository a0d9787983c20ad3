"""Options that do not go together: one row each, judged by `check_rules`.

Without these rows verl or vLLM would ignore an option or misread it, training would learn wrongly, or a run would stand
still, or lose what it has. Each row was checked against the installed wheels.
"""

import math
import re
from functools import partial
from typing import Any

from omegaconf import DictConfig
from verl.utils.torch_dtypes import BFLOAT_LIST, FLOAT_LIST, HALF_LIST

from ..config.derived import needs_bypass_loss
from ..config.extensions import AGENTS, TOOLS, declared, not_in_copy
from ..config.options import AsyncDAPOConfig
from ..config.values import Rule, check_rules
from ..config.verl_keys import ACTOR, CORRECTION, FSDP_NODES, MODEL, MODELS, REF, ROLLOUT, SHARDS, TOOL_FILES, VLLM
from ..core.leases import MAX_PENDING_CALLS
from .facts import BYPASS, DECOUPLED, MIXTURE, MOST_WEIGHT, NONE, Run
from .verl_options import MEGATRON_SIZES, listed, verls_reward_managers

_REWARD = "reward.reward_kwargs."
_OVERLONG = _REWARD + "overlong_buffer_cfg."
LOSS_MODE = ACTOR + "policy_loss.loss_mode"
PENALISED_METRICS = ("reward", "seq_reward", "seq_final_reward")  # of the final reward, with the overlong penalty
_STORED = {"model", "optimizer", "extra"}  # what a resumed run goes on from
_WEIGHTS = {"model", "hf_model"}
_NOT_QUANTIZED = (None, "auto", "float16", "bfloat16")


def _lacks_parts(it: Run, model: str, contents: str) -> bool:
    """A run that resumes from nothing may save less, from which no later one goes on."""
    acts = it.resumes and (contents == "load_contents" or it.saves)
    parts = it.get(f"{MODELS[model]}checkpoint.{contents}")
    return acts and it.has[model] and parts is not None and not set(listed(parts)) >= _STORED


def _saves_no_weights(it: Run, model: str) -> bool:
    parts = it.get(f"{MODELS[model]}checkpoint.save_contents")
    return it.saves and not it.resumes and it.has[model] and parts is not None and not _WEIGHTS & set(listed(parts))


def _fills_up(it: Run, model: str) -> bool:
    return it.has[model] and it.options.target_valid_groups % it.get(MODELS[model] + "ppo_mini_batch_size") != 0


def _splits_unevenly(it: Run, model: str) -> bool:
    mini_batch = it.get(MODELS[model] + "ppo_mini_batch_size") * it.options.rollout_n
    return it.has[model] and mini_batch % it.ranks[model] != 0


def _shares_no_gradients(it: Run, model: str) -> bool:
    """torch's FSDP1 takes a group of one rank for a whole world."""
    is_alone = it.get(SHARDS[model]) == 1 < it.training_gpus
    return it.model_engine == "dp" and it.has[model] and is_alone and it.strategy_of(model) == "fsdp"


def _computes_otherwise(it: Run, model: str) -> bool:
    """FSDP reads the type of its computations elsewhere; one that says the same there is in nobody's way."""
    node = MODELS[model] + FSDP_NODES[model][-1]
    named, real = it.get(node + "dtype"), it.get(node + "mixed_precision.param_dtype") or BFLOAT_LIST[0]
    same: list[Any] = next((kinds for kinds in (HALF_LIST, FLOAT_LIST, BFLOAT_LIST) if real in kinds), [])
    return it.model_engine == "dp" and it.builds[model] and named not in (None, *BFLOAT_LIST, *same)


def _cuts(it: Run, part: str) -> bool:
    return bool(it.get(f"{ROLLOUT}{part}_length") != it.get(f"data.max_{part}_length"))


def _has_actors_of_its_own(it: Run) -> bool:
    """verl's `remote`, where no process of ours takes the place of its actors."""
    manager, sandbox = it.reward.reward_manager, it.get("reward.sandbox_fusion.url")
    is_verls = sandbox is not None and it.reward.custom_reward_function.path is None
    has_processes = "reward_processes" in it.options.extensions and not is_verls
    return (manager.source, manager.name) == ("register", "remote") and not has_processes


_OLD = "older than async_dapo.max_staleness={it.options.max_staleness}"
_CONTRADICTS = "contradicts async_dapo.importance_sampling={it.options.importance_sampling}; "
_STRATEGY = "async_dapo.rollout_strategy={it.options.rollout_strategy} keeps the "

# fmt: off
RULES: tuple[Rule, ...] = (
    Rule("trainer.critic_warmup", lambda it: it.trainer.critic_warmup > 0 and not it.has["critic"],
         "there is no critic, and the actor would not train; set 0"),
    Rule("trainer.val_only", lambda it: it.trainer.val_only and not it.trainer.val_before_train,
         "is ignored without trainer.val_before_train=True"),
    Rule("trainer.resume_from_path",
         lambda it: bool(it.trainer.resume_from_path) is not (it.trainer.resume_mode == "resume_path"),
         "is read with trainer.resume_mode=resume_path alone, and needed there, but that is {it.trainer.resume_mode}; "
         "set both, or neither"),
    *(Rule(f"{MODELS[model]}checkpoint.{contents}", partial(_lacks_parts, model=model, contents=contents),
           "no run goes on without model, optimizer and extra; add what is missing, or set trainer.resume_mode=disable")
      for model in ("actor", "critic") for contents in ("save_contents", "load_contents")),
    *(Rule(f"{MODELS[model]}checkpoint.save_contents", partial(_saves_no_weights, model=model),
           "checkpoints would hold no weights; add model or hf_model, or set trainer.save_freq=-1")
      for model in ("actor", "critic")),
    *(Rule(SHARDS[model], partial(_shares_no_gradients, model=model),
           f"with {MODELS[model]}strategy=fsdp torch would share no gradients between the {{it.training_gpus}} GPUs, "
           f"and each would train a model of its own; set -1, or {MODELS[model]}strategy=fsdp2")
      for model in ("actor", "critic")),
    *(Rule(f"{MODELS[model]}{nodes[-1]}dtype", partial(_computes_otherwise, model=model),
           f"is ignored by FSDP, which computes in bf16, or as {MODELS[model]}{nodes[-1]}mixed_precision says; leave "
           f"it out, or add +{MODELS[model]}{nodes[-1]}mixed_precision.param_dtype with this value")
      for model, nodes in FSDP_NODES.items()),
    *(Rule(MODELS[model] + "ppo_mini_batch_size", partial(_fills_up, model=model),
           "must divide data.train_batch_size={it.options.target_valid_groups}: verl would pad the last one")
      for model in ("actor", "critic")),
    *(Rule(MODELS[model] + "ppo_mini_batch_size", partial(_splits_unevenly, model=model),
           f"times rollout.n={{it.options.rollout_n}} must be a multiple of {{it.ranks[{model}]}} data-parallel ranks")
      for model in ("actor", "critic")),
    *(Rule(ROLLOUT + f"{part}_length", partial(_cuts, part=part),
           f"agent loops cut each {part} there, behind every check; leave it out, it follows data.max_{part}_length")
      for part in ("prompt", "response")),

    *(Rule(REF + name,
           partial(lambda it, name: it.has["ref"] and it.get(REF + name) != it.get(ACTOR + name), name=name),
           f"actor and reference share Megatron's groups of ranks; leave it out, it follows {ACTOR}{name}")
      for name in MEGATRON_SIZES),

    Rule("algorithm.use_pf_ppo", lambda it: it.algorithm.use_pf_ppo,
         "with adv_estimator=gae verl gives trajectories the advantages of others, and else ignores it; set False"),
    Rule("algorithm.filter_groups.metric", lambda it: it.options.filter.metric in PENALISED_METRICS,
         "holds the overlong penalty, with which an all-wrong group passes the filter; name a raw metric, such as acc"),
    Rule("algorithm.adv_estimator", lambda it: it.algorithm.adv_estimator == "opo" and it.withholds,
         f"weighs rewards by lengths, which lose tokens {_OLD}; set async_dapo.max_staleness=null, or another one"),
    Rule("algorithm.use_kl_in_reward", lambda it: it.algorithm.use_kl_in_reward and it.withholds,
         f"tokens {_OLD} would leave KL penalty and baseline; set async_dapo.max_staleness=null, or use "
         f"{ACTOR}use_kl_loss"),
    Rule(ACTOR + "loss_scale_factor",
         lambda it: it.actor.loss_agg_mode == "seq-mean-token-sum-norm" and it.actor.loss_scale_factor is None,
         "with loss_agg_mode=seq-mean-token-sum-norm verl divides by the longest answer of each micro batch; set it to "
         "data.max_response_length={it.options.max_response_length}"),

    Rule(CORRECTION + "rollout_is",
         lambda it: it.corrects(BYPASS) and it.correction.rollout_is and it.correction.loss_type == "ppo_clip",
         "is ignored in bypass mode, where PPO's ratio is the weight; leave it null, choose "
         "async_dapo.importance_sampling=decoupled, or set algorithm.rollout_correction.loss_type=reinforce"),
    Rule(LOSS_MODE, lambda it: it.corrects(BYPASS) and it.get(LOSS_MODE) == "gpg",
         "has no ratio, which is the correction in bypass mode; use async_dapo.importance_sampling=decoupled"),
    Rule(LOSS_MODE, lambda it: _is_dppo(it) and not it.corrects(BYPASS) and it.actor.ppo_epochs == 1
         and it.actor.ppo_mini_batch_size == it.options.target_valid_groups,
         "masks what has moved away from pi_prox, where a step's only update begins; set "
         "async_dapo.importance_sampling=bypass"),
    Rule(ACTOR + "clip_ratio_high",
         lambda it: _is_dppo(it) and (it.actor.clip_ratio_low, it.actor.clip_ratio_high) == (0.2, 0.28),
         "is DAPO's limit of a ratio, and that of a divergence with this loss_mode; set it and clip_ratio_low, such as "
         "0.05 for dppo_kl, 0.15 for dppo_tv"),
    Rule(LOSS_MODE, lambda it: it.get(LOSS_MODE) == "geo_mean",
         "adds up means of micro batches, so that its gradient grows with their number; use gspo"),
    Rule(LOSS_MODE, lambda it: it.corrects(BYPASS) and needs_bypass_loss(it.correction)
         and it.get(LOSS_MODE) not in ("vanilla", "bypass_mode", "gpg"),
         "is replaced by verl's bypass loss, which rollout_rs and loss_type=reinforce need; leave it at vanilla"),
    Rule("async_dapo.max_tokens_per_round",  # verl's bypass loss raises at a micro batch without a token
         lambda it: it.corrects(BYPASS) and needs_bypass_loss(it.correction) and it.options.max_staleness
         and (it.options.max_tokens_per_round or math.inf) < it.options.max_response_length,
         f"all tokens of a group may be {_OLD}, and verl's bypass loss (rollout_rs, loss_type=reinforce) fails without "
         "any; set null, or async_dapo.max_staleness=null, or async_dapo.importance_sampling=decoupled"),
    *(Rule(CORRECTION + name,
           partial(lambda it, name: it.corrects(NONE) and it.correction[name] is not None, name=name),
           _CONTRADICTS + "leave it null or choose decoupled")
      for name in ("rollout_is", "rollout_rs")),
    Rule(CORRECTION + "bypass_mode", lambda it: not it.corrects(BYPASS) and it.correction.bypass_mode,
         _CONTRADICTS + "set it to False, or importance_sampling to bypass"),
    Rule(CORRECTION + "loss_type", lambda it: not it.corrects(BYPASS) and it.correction.loss_type != "ppo_clip",
         "acts with async_dapo.importance_sampling=bypass only; leave it at ppo_clip"),
    Rule(LOSS_MODE, lambda it: it.get(LOSS_MODE) == "bypass_mode"
         and not (it.corrects(BYPASS) and needs_bypass_loss(it.correction)),
         "takes old log-probs for the behaviour policy's, with options of its own; leave it at vanilla"),
    Rule(CORRECTION + "rollout_is", lambda it: it.correction.loss_type == "reinforce"
         and it.correction.rollout_is is None and it.correction.rollout_rs is None,
         "loss_type=reinforce has no ratio of its own; set it to token, or rollout_rs to a mask"),
    Rule(CORRECTION + "rollout_is_threshold", lambda it: it.correction.rollout_is_threshold is None
         and (it.corrects(DECOUPLED) or it.corrects(MIXTURE) or it.correction.rollout_is is not None),
         "verl would leave the weights out; set the truncation, such as 2.0, or async_dapo.importance_sampling=none"),
    Rule(CORRECTION + "rollout_is_threshold", lambda it: it.largest_weight < 1,
         "cuts the weights of new tokens, too; set 1 or more, as a band lower_upper with a decimal point at its end: "
         "Hydra reads 0.5_5 as 0.55, and 0.5_5.0 as it stands"),
    *(Rule(CORRECTION + name, partial(lambda it, name: "nan" in re.split(r"[_,\s]+", str(it.correction[name]).lower()),
                                       name=name),
           "nan is no bound: no weight, or no token, would be left; set a number")
      for name in ("rollout_is_threshold", "rollout_rs_threshold")),

    Rule("async_dapo.max_concurrent_prompts",
         lambda it: it.options.rollout_pool_size is None and it.requests >= MAX_PENDING_CALLS,
         f"{{it.requests}} requests could wait at once, the load balancer takes {MAX_PENDING_CALLS}; lower it"),
    Rule("async_dapo.rollout_pool_size",
         lambda it: it.options.fixed_pool_size is not None and it.requests >= MAX_PENDING_CALLS,
         f"{{it.requests}} requests could wait at once, the load balancer takes {MAX_PENDING_CALLS}; lower it"),
    Rule("async_dapo.max_loads_per_server", lambda it: (it.options.max_loads_per_server or 0) >= it.server_calls,
         "must be below the {it.server_calls} concurrent calls of a vLLM server actor, or weight updates and the stop "
         f"wait behind generation; lower it, or raise {ROLLOUT}max_num_seqs"),

    Rule(ROLLOUT + "nnodes", lambda it: it.rollout.nnodes and not it.options.is_separate,
         "counts the nodes that engines have to themselves, and async_dapo.placement is {it.options.placement}; set 0, "
         "or async_dapo.placement=separate"),
    Rule(ROLLOUT + "enable_sleep_mode",
         lambda it: it.rollout.free_cache_engine and it.rollout.get("enable_sleep_mode") is False,
         "engines cannot sleep; set free_cache_engine=False too"),
    Rule(ROLLOUT + "enable_rollout_routing_replay",
         lambda it: it.rollout.enable_rollout_routing_replay and it.replays not in (None, "R3"),
         "engines would tell which experts they took, and nobody would take the same; set "
         f"{ACTOR}{{it.model_engine}}.router_replay.mode=R3, or False"),
    Rule(VLLM + "decode_context_parallel_size",
         lambda it: it.rollout.enable_rollout_routing_replay
         and it.vllm.get("decode_context_parallel_size") not in (None, 1),
         f"vLLM does not tell experts then; leave it out, or set {ROLLOUT}enable_rollout_routing_replay=False"),
    *(Rule(f"{ACTOR}{engine}.router_replay.mode",
           partial(lambda it, own: it.replays == "R3" and it.model_engine == own
                   and not it.rollout.enable_rollout_routing_replay, own=engine),
           f"the update would find no experts to take; set {ROLLOUT}enable_rollout_routing_replay=True, or disabled")
      for engine in ("megatron", "veomni")),
    Rule(MODEL + "lora_rank", lambda it: it.model_engine == "veomni" and it.model.lora_rank,
         "verl's VeOmni engine does not bring adapters to the engines; set 0, or model_engine=dp"),
    Rule(MODEL + "lora_rank",
         lambda it: it.model_engine == "megatron" and it.model.lora_rank and not it.model.lora.rank,
         f"is FSDP's, Megatron trains all weights; set {MODEL}lora.rank, or 0"),
    *(Rule(MODEL + name,
           partial(lambda it, name: it.model_engine != "megatron" and not it.model.lora_rank and it.get(MODEL + name),
                   name=name),
           f"is ignored: with {MODEL}lora_rank=0 FSDP trains all weights; set that, or leave this out")
      for name in ("lora.rank", "lora_adapter_path")),
    Rule(ROLLOUT + "quantization",
         lambda it: it.rollout.quantization == "fp8" and (it.model.lora_rank or it.model.lora.rank)
         and not it.model.lora.merge,
         f"verl sends weights below adapters in bf16, without scales; set {MODEL}lora.merge=True, or leave it out"),

    *(Rule(key, partial(lambda it, key: it.get(key) not in _NOT_QUANTIZED and not it.truncates_tokens, key=key),
           f"engines sample from another distribution, which needs each token's weight truncated at {MOST_WEIGHT:g}; "
           f"set async_dapo.importance_sampling=decoupled, {CORRECTION}rollout_is=token and {CORRECTION}"
           f"rollout_is_threshold={MOST_WEIGHT:g}")
      for key in (ROLLOUT + "quantization", VLLM + "quantization", VLLM + "kv_cache_dtype")),
    Rule(VLLM + "kv_cache_dtype",
         lambda it: it.options.has_old_kv and it.vllm.get("kv_cache_dtype") not in _NOT_QUANTIZED,
         _STRATEGY + "cache over weight updates, and with it keys of other scales; choose partial, or leave it out"),
    Rule(VLLM + "calculate_kv_scales", lambda it: it.vllm.get("calculate_kv_scales"),
         "vLLM takes the scales of the weights at the start, and 1 after a wake-up; leave it out"),
    Rule(VLLM + "moe_backend", lambda it: it.vllm.get("moe_backend") not in (None, "auto", "triton"),
         "lays experts out anew, and no weight update could be loaded; use triton"),
    Rule(VLLM + "hf_overrides",
         lambda it: it.vllm.get("hf_overrides") and (it.rollout.quantization or it.get(ROLLOUT + "qat.enable")),
         "takes the place of those that verl makes for engines that quantize; leave them out, or the quantization"),

    Rule("reward.reward_model.enable_resource_pool",
         lambda it: it.reward_model.enable is not it.reward_model.enable_resource_pool,
         "must equal reward.reward_model.enable={it.reward_model.enable}: a reward model on the trainer's GPUs scores "
         "after the rollout, and a pool without one reserves GPUs for nothing"),
    Rule("reward.reward_model.rollout.free_cache_engine",
         lambda it: it.reward_model.enable and it.reward_model.rollout.free_cache_engine,
         "the reward model would sleep from the start until after the rollout; set False"),
    Rule("reward.custom_reward_function.path",
         lambda it: it.reward_model.enable and it.reward.custom_reward_function.path is None,
         "verl's agent loops cannot read the score of a reward model alone; name a reward function that asks the model "
         "(its argument reward_router_address) and returns a dict"),
    Rule("reward.reward_manager.name", _has_actors_of_its_own,
         "runs the function in Ray actors, {it.reward.num_workers} for each reward worker, each with a CPU of Ray's; "
         "one without a CPU never answers, and one that a call has ended stays dead; choose naive, or have "
         "extensions/reward_processes run it, with async_dapo.reward.processes=null and no reward.sandbox_fusion.url"),
    Rule(_OVERLONG + "enable", lambda it: it.overlong.enable and it.reward.reward_manager.source == "register"
         and it.reward.reward_manager.name in verls_reward_managers() - {"dapo"},
         "is ignored by reward.reward_manager.name={it.reward.reward_manager.name}; use dapo, or disable it"),
    Rule(_REWARD + "max_resp_len",
         lambda it: it.overlong.enable and it.reward.reward_kwargs.max_resp_len != it.options.max_response_length,
         "must equal data.max_response_length={it.options.max_response_length}, where responses end"),
)
# fmt: on


def _without(name: str) -> list[Rule]:
    """In a copy that does not make calls once, a run that the stop interrupts would make those of tools again; and
    nothing would make those that are to be tried.
    """
    keys, remedy = (*TOOL_FILES, "async_dapo.calls.check"), not_in_copy(name, "leave tools out")
    return [Rule(key, partial(lambda it, key: it.get(key) is not None, key=key), remedy) for key in keys]


def _is_dppo(it: Run) -> bool:
    return str(it.get(LOSS_MODE)).startswith("dppo_")


def check_options(config: DictConfig, options: AsyncDAPOConfig) -> str:
    """Judge every row.

    Returns:
        Estimator and correction, in words.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    run = Run.of(config, options)
    without = next((_without(name) for name in (AGENTS, TOOLS) if name not in declared()), [])
    rows = (*RULES, *without, *(row for one in declared().values() for row in one.rules))
    check_rules(rows, run, run.config)
    return f"{config.algorithm.adv_estimator}, importance sampling {options.importance_sampling}"
