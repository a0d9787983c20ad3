"""Drafts: what they add that is known before anything runs."""

from functools import partial
from importlib.util import find_spec
from typing import Any

from ...config.extensions import Declared
from ...config.values import SUFFIX_PACKAGE, Drafts, Rule
from ...config.verl_keys import MODEL, ROLLOUT, VLLM
from .speculative import SpeculativeConfig, own_head_drafts

_PLACE = "async_dapo.drafts={it.options.drafts} takes its place; leave one of them out"
_SUFFIX_MODULE = "arctic_inference"
_PACKAGE = f"vLLM needs a package for it; run: pip install {SUFFIX_PACKAGE}"
# vLLM refuses the first two where it verifies drafts; behind a stop string, what the same step yielded would stay.
_NOT_DRAFTED = ("min_p", "logit_bias", "stop")
_NOT_WITH_DRAFTS = "does not go with drafts (stop_token_ids do); set async_dapo.drafts=null, or leave it out"


def _given(it: Any) -> SpeculativeConfig | None:
    """What users gave vLLM themselves."""
    return SpeculativeConfig.of(it.vllm)


def _loads_a_head(it: Any) -> bool:
    given = _given(it)  # vLLM reads deepseek_mtp and its like as mtp
    return given is not None and str(given.method).endswith("mtp") and given.config.get("draft_load_config") is None


def _has_weights(it: Any) -> bool:
    given = _given(it)
    return given is not None and given.has_weights


# fmt: off
DECLARED = Declared(
    wire="wiring.wire",
    observer="meter.DraftMeter",
    metrics=("drafts/tok_per_step",),
    refused_parameters=dict.fromkeys(_NOT_DRAFTED, _NOT_WITH_DRAFTS),
    rules=(
        Rule(VLLM + "speculative_config", lambda it: it.options.drafts and _given(it), _PLACE),
        Rule(MODEL + "mtp.enable_rollout", lambda it: it.options.drafts and own_head_drafts(it.rollout), _PLACE),
        Rule(VLLM + "speculative_config.rejection_sample_method",
             lambda it: (given := _given(it)) and given.config.get("rejection_sample_method") == "synthetic",
             "accepts drafts by chance, whatever the policy says; leave it out"),
        Rule(ROLLOUT + "load_format", lambda it: _has_weights(it) and it.rollout.load_format == "dummy",
             "the model that drafts would stay random: vLLM's second model runner ignores draft_load_config; set auto"),
        Rule(MODEL + "mtp.enable_rollout",
             lambda it: not it.options.drafts and own_head_drafts(it.rollout) and it.model_engine != "megatron",
             "the trainer has no such head to bring to engines; set False, and async_dapo.drafts=mtp, which keeps the "
             "checkpoint's"),
        Rule(VLLM + "speculative_config.method",
             lambda it: _loads_a_head(it) and not (it.model_engine == "megatron" and it.model.mtp.enable),
             "the trainer has no such head to bring to engines, and its other weights would go there; leave "
             "speculative_config out, and set async_dapo.drafts=mtp, which keeps the checkpoint's"),
        Rule(ROLLOUT + "quantization",
             lambda it: it.options.drafts is Drafts.MTP and it.rollout.quantization == "fp8",
             "the checkpoint's head comes in bf16, into FP8 blocks without scales; leave it out, or set "
             "async_dapo.drafts=suffix"),
        *(Rule(key, partial(lambda it, drafts: it.options.host_kv_gib is not None and drafts(it), drafts=drafts),
               "with async_dapo.host_kv_gib requests that are copied back can wait for each other's blocks for ever; "
               "leave it out, use async_dapo.drafts=suffix, or set async_dapo.host_kv_gib=null")
          for key, drafts in (("async_dapo.drafts", lambda it: it.options.drafts is Drafts.MTP),
                              (VLLM + "speculative_config", _has_weights),
                              (MODEL + "mtp.enable_rollout", lambda it: own_head_drafts(it.rollout)))),
        Rule("async_dapo.drafts", lambda it: it.options.drafts is Drafts.SUFFIX and find_spec(_SUFFIX_MODULE) is None,
             _PACKAGE),
        Rule(VLLM + "speculative_config.method",
             lambda it: (given := _given(it)) and given.method == Drafts.SUFFIX and find_spec(_SUFFIX_MODULE) is None,
             _PACKAGE),
        Rule(VLLM + "logits_processors", lambda it: it.vllm.get("logits_processors")
             and (_given(it) or it.options.drafts or own_head_drafts(it.rollout)),
             "vLLM refuses them where it verifies drafts; leave them out"),
    ),
)
# fmt: on
