"""Engines on GPUs of their own: what they add that is known before anything runs."""

import math
from functools import partial

from ...config.extensions import Declared
from ...config.values import RolloutStrategy, Rule
from ...config.verl_keys import MODEL, ROLLOUT
from ...core.stop_rules import StopRuleName

_SEPARATE = "with async_dapo.placement=separate: "

# Engines go on while the trainer trains.
# fmt: off
DECLARED = Declared(
    parts="trainer.PARTS",
    wire="trainer.wire",
    metrics=("load_balancer/versions_behind", "load_balancer/update_s"),
    together=(
        Rule("async_dapo.rollout_strategy",
             lambda it: it.is_separate and it.rollout_strategy is RolloutStrategy.DISCARD,
             _SEPARATE + "would throw tokens away, and no step stops the engines; choose another strategy"),
        Rule("async_dapo.max_staleness", lambda it: it.is_separate and it.max_staleness == 0,
             _SEPARATE + "engines would wait for every training step; set it to 1 or more"),
        Rule("async_dapo.stop_rule", lambda it: it.is_separate and it.keeps_tokens
             and it.stop_rule is not StopRuleName.FIRST_COMPLETED,
             _SEPARATE + "no step stops the engines, and the oldest groups are trained first; leave it null"),
        Rule("async_dapo.max_tokens_per_round", lambda it: it.is_separate and it.max_tokens_per_round is not None,
             _SEPARATE + "a round has no end; leave it null"),
        Rule("async_dapo.over_sampling_batch_size",
             lambda it: it.is_separate and (it.over_sampling().batch_size or math.inf) <= it.target_valid_groups,
             _SEPARATE + "the batch in training counts: engines would begin nothing; set auto, or more than "
             "data.train_batch_size={it.target_valid_groups}"),
    ),
    rules=(
        *(Rule(MODEL + name,
               partial(lambda it, name: it.options.is_separate and it.get(MODEL + name) and not it.model.lora.merge,
                       name=name),
               _SEPARATE + "engines get whole weights; set actor_rollout_ref.model.lora.merge=True")
          for name in ("lora_rank", "lora.rank")),
        Rule(ROLLOUT + "nnodes", lambda it: it.options.is_separate and not it.rollout.nnodes,
             _SEPARATE + "counts the nodes that engines have to themselves; set 1 or more"),
        Rule(ROLLOUT + "tensor_model_parallel_size",
             lambda it: it.options.is_separate and it.engine_gpus % it.gpus_per_engine,
             _SEPARATE + "engines of {it.gpus_per_engine} GPUs do not divide the {it.engine_gpus} of "
             f"{ROLLOUT}nnodes x {ROLLOUT}n_gpus_per_node; set a size that does, such as 1"),
    ),
)
# fmt: on
