"""Rows of options that are refused: an example of each, in short words."""

import re
from typing import Any

import pytest
from omegaconf import OmegaConf

from recipe.async_dapo.config.extensions import PACKAGE, declared
from recipe.async_dapo.config.values import Rule
from recipe.async_dapo.startup.facts import Run

from .composed_runs import ComposeRun, of_options

LOOK_FOR_PACKAGES = {"known_values": "rows", "drafts": "declared"}  # modules with rules that do, by their extensions
AFTER_RULES = "vLLM's arguments"  # the check that follows that of the rules
ROLLOUT, VLLM = "actor_rollout_ref.rollout.", "actor_rollout_ref.rollout.engine_kwargs.vllm."
FULL = {
    "vllm.": f"++{VLLM}",
    "rollout.": ROLLOUT,
    "actor.": "actor_rollout_ref.actor.",
    "ref.": "actor_rollout_ref.ref.",
    "model.": "actor_rollout_ref.model.",
    "correction.": "algorithm.rollout_correction.",
    "critic.experts": "critic.megatron.expert_model_parallel_size",
    "overlong.": "reward.reward_kwargs.overlong_buffer_cfg.",
}
SHORT = {
    **{mode: f"async_dapo.importance_sampling={mode}" for mode in ("none", "bypass", "decoupled", "mixture")},
    "gae": "algorithm.adv_estimator=gae critic.model.path=${actor_rollout_ref.model.path} critic.strategy=fsdp2 "
    "critic.ppo_micro_batch_size_per_gpu=1",
    "megatron": "model_engine=megatron trainer.n_gpus_per_node=2 actor.megatron.tensor_model_parallel_size=2",
    "saves": "trainer.save_freq=10",
    "anew": "trainer.resume_mode=disable",
    "ranks": "trainer.n_gpus_per_node=8 actor.ppo_micro_batch_size_per_gpu=1 "
    "rollout.log_prob_micro_batch_size_per_gpu=1",
    "ref": "actor.use_kl_loss=True ref.log_prob_micro_batch_size_per_gpu=8",
    "dynamic": "actor.use_dynamic_bsz=True",
    "mask": "correction.rollout_rs=seq_mean_k3 correction.rollout_rs_threshold=0.1",
    "separate": "async_dapo.placement=separate rollout.nnodes=1 rollout.n_gpus_per_node=1",
    "ngram": "vllm.speculative_config={method:ngram,num_speculative_tokens:3}",
    "head": "model.mtp.enable=True model.mtp.enable_rollout=True",
    "host_kv": "async_dapo.rollout_strategy=partial_stale_kv async_dapo.host_kv_gib=1",
    "replay": "rollout.enable_rollout_routing_replay=True",
    "reward_model": "reward.reward_model.enable=True reward.reward_model.enable_resource_pool=True "
    "reward.reward_model.rollout.free_cache_engine=False",
    "overlong": "overlong.enable=True overlong.len=8",
}


def in_full(text: str) -> list[str]:
    words = " ".join(SHORT.get(word, word) for word in text.split())
    keys = "|".join(map(re.escape, FULL))
    return re.sub(rf"(?<![\w./{{])({keys})(?=\S*=)", lambda found: FULL[found[0]], words).split()


def assert_refused(run: ComposeRun, monkeypatch: pytest.MonkeyPatch, rule: Rule, line: str) -> None:
    """A row is refused with key, value and remedy, and its neighbour passes.

    Args:
        line: overrides that the row refuses -> what makes them right. `-name` is a package that is missing. Keys are
            shortened as in `FULL`, several overrides as in `SHORT`.
    """
    wrong, right = map(in_full, line.split("->"))
    missing = {word[1:] for word in wrong if word.startswith("-")}
    wrong = [word for word in wrong if not word.startswith("-")]
    for name, module in LOOK_FOR_PACKAGES.items():
        if name in declared():
            monkeypatch.setattr(f"{PACKAGE}.{name}.{module}.find_spec", lambda name: None if name in missing else True)
    errors = of_options(config := run(*wrong), before=AFTER_RULES)
    remedy = ".*".join(map(re.escape, re.split(r"\{it[^}]*\}", rule.remedy.replace("{{", "{").replace("}}", "}"))))
    value = re.escape(str(OmegaConf.select(Run.of(config, None).config, rule.key)))
    assert [error for error in errors if re.fullmatch(f"{re.escape(rule.key)}={value}: {remedy}", error)], errors
    assert not of_options(run(*wrong, *right))


def another_value(accepted: tuple[Any, ...]) -> Any:
    """A value of the accepted one's kind that is not accepted."""
    if any(isinstance(value, bool) for value in accepted):
        return next(value for value in (True, False) if value not in accepted)
    number = next((value for value in accepted if isinstance(value, int | float)), None)
    if number is not None:
        return number + 3
    return "{other:1}" if any(isinstance(value, dict) for value in accepted) else "other"


def assert_line(run: ComposeRun, line: str) -> None:
    """Overrides, ` -> `, and how an error of theirs begins: behind the first one, where that is a colon."""
    overrides, said = in_full(line.split(" -> ")[0]), line.split(" -> ")[1]
    beginning = re.escape(overrides[0].lstrip("+")) + said if said.startswith(":") else said
    errors = of_options(run(*overrides))
    assert [error for error in errors if re.match(beginning, error, re.DOTALL)], errors
