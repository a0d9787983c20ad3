"""How engines start that draft: how deep they sleep, and how long their contexts may be."""

from typing import Any

import pytest
from omegaconf import open_dict

from recipe.async_dapo.config.extensions import load, refused_parameters
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.extensions.drafts.declared import DECLARED
from recipe.async_dapo.extensions.drafts.speculative import SpeculativeConfig, speculative_config
from recipe.async_dapo.weights.stream import CUSTOM_OPTIONS

from ....support.composed_runs import ComposeRun
from ....support.refusals import in_full

JSON = '{"method":"ngram","num_speculative_tokens":4}'
HEAD = "vllm.speculative_config={model:a/head,num_speculative_tokens:3} rollout.load_format=auto"


def wired(run: ComposeRun, *overrides: str) -> Any:
    """The options of the engines."""
    config = run(*in_full(" ".join(overrides)))
    rollout = config.actor_rollout_ref.rollout
    with open_dict(config):
        rollout.custom = {CUSTOM_OPTIONS: {"keeps_weights": False}}
    load("drafts", DECLARED.wire)(config, AsyncDAPOConfig.from_hydra(config))
    return rollout


@pytest.mark.parametrize(
    ("overrides", "keeps"),
    [
        ("ngram", False),
        ("async_dapo.drafts=suffix", False),
        (HEAD.replace("speculative_config", "speculative-config"), True),
        ("async_dapo.drafts=mtp", True),
        ("megatron head", False),  # verl's own, which has no speculative config here
    ],
)
def test_an_engine_keeps_its_weights_when_it_sleeps_where_a_model_drafts_that_no_update_brings_back(
    run, overrides: str, keeps: bool
) -> None:
    assert wired(run, overrides).custom[CUSTOM_OPTIONS].keeps_weights is keeps


@pytest.mark.parametrize(
    ("overrides", "longest_tok"),
    [
        ("ngram", None),  # the model's own limit, and none that is given
        ("ngram rollout.max_model_len=200", 203),
        (f"vllm.speculative_config='{JSON}' rollout.max_model_len=200", 204),
        (f"{HEAD} rollout.max_model_len=200", 203),
        ("ngram rollout.max_model_len=1023", 1024),  # the model has no more positions
    ],
)
def test_contexts_of_an_engine_with_drafts_may_be_longer_by_a_draft(run, overrides: str, longest_tok) -> None:
    assert wired(run, overrides).engine_kwargs.vllm.get("max_model_len") == longest_tok


def test_an_engine_that_computes_prompts_at_once_takes_so_many_tokens(run) -> None:
    overrides = "ngram rollout.max_model_len=200 rollout.max_num_batched_tokens=200"
    vllm = wired(run, overrides, "rollout.enable_chunked_prefill=False").engine_kwargs.vllm
    assert vllm.max_num_batched_tokens == 203
    assert "max_num_batched_tokens" not in wired(run, overrides).engine_kwargs.vllm


@pytest.mark.parametrize(
    ("overrides", "brought"),
    [
        ("", False),
        ("model.mtp.enable=True", False),  # FSDP leaves the head out
        ("megatron", False),
        ("megatron model.mtp.enable=True model.mtp.enable_train=True", True),
    ],
)
def test_a_head_comes_with_the_weights_or_from_the_checkpoint(run, overrides, brought):
    config = run(*in_full(f"async_dapo.drafts=mtp model.mtp.num_speculative_tokens=3 {overrides}"))
    chosen = speculative_config(AsyncDAPOConfig.from_hydra(config).drafts, config)
    own = {} if brought else {"draft_load_config": {"load_format": "auto"}}
    assert chosen == {"method": "mtp", "num_speculative_tokens": 3, **own}


@pytest.mark.parametrize("overrides", ["async_dapo.drafts=suffix", "ngram", HEAD, "megatron head"])
def test_whatever_drafts_the_client_refuses_what_vllm_does_not_take_with_it(run, overrides: str) -> None:
    options = AsyncDAPOConfig.from_hydra(run(*in_full(overrides)))
    assert refused_parameters(options.extensions).keys() == {"min_p", "logit_bias", "stop"}
    for others in ("", "model.mtp.enable_rollout=True"):  # which does nothing without mtp.enable
        assert not refused_parameters(AsyncDAPOConfig.from_hydra(run(*in_full(others))).extensions)


def test_what_says_nothing_of_drafts_has_none():
    assert SpeculativeConfig.of({"kv_cache_dtype": "fp8", "speculative_config": None}) is None
