"""Which systems a plan compares: other systems as baselines, and this recipe's options crossed; the bound that none of
them passes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...async_dapo.config.values import Drafts, RolloutStrategy
from ...async_dapo.core.stop_rules import StopRuleName
from .costs import StepCost
from .scenario import Scenario
from .systems import (
    System,
    april,
    async_dapo_2025,
    copris,
    dynamic_sampling,
    recipe,
    verl_colocate_async,
    verl_sync,
)

SAMPLE = 4096  # prompts

DRAFTS, COLOCATE_WITH_DRAFTS = "async_dapo.drafts", "colocate_async with these drafts"  # which verl has not
CAP = "async_dapo.max_partial_share"
VLLM_CALL_LIMIT = 1000  # a server actor's concurrent calls: max_loads_per_server must stay below


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The fastest step that the GPUs allow, whatever is scheduled how.

    A step needs the tokens of B valid groups, and of the groups that are filtered on the way to them; engines that are
    never idle, with the batch that generates most, take so long for them; then comes the training. No system that
    trains on B groups of its own step's cost is faster in the long run, unless it prefers short answers.
    """

    needed_tok: float  # generated, filtered groups included
    trained_tok: float
    trained_len_tok: float  # mean response of a valid group
    tokens_per_s: float  # of all servers at their best
    log_prob_s: float
    train_s: float
    update_s: float

    @property
    def rollout_s(self) -> float:
        return self.needed_tok / self.tokens_per_s

    @property
    def step_s(self) -> float:
        return self.rollout_s + self.log_prob_s + self.train_s + self.update_s


def bound_of(scenario: Scenario, *, filters: bool = True, drafts: bool = False) -> Bound:
    """
    Args:
        filters: groups without signal; a single answer is never filtered.
        drafts: of engines that draft.
    """
    groups = scenario.workload().answers(SAMPLE)
    lens_tok = np.array([group.response_lens_tok for group in groups], dtype=float)
    keeps_all = not filters or scenario.rollout_n == 1
    is_valid = np.array([keeps_all or min(group.metrics) < max(group.metrics) for group in groups])
    valid_tok = lens_tok[is_valid] if is_valid.any() else lens_tok
    batch = scenario.train_batch_size * scenario.rollout_n
    whole = scenario.prompt_len_tok + valid_tok
    sums = batch * whole.mean(), batch * (whole**2).mean()
    cost = scenario.training_cost()
    per_server = best_tokens_per_s(
        scenario.step_cost(drafts=drafts),
        lens_tok.ravel(),
        prompt_len_tok=scenario.prompt_len_tok,
        max_num_seqs=scenario.max_num_seqs,
    )
    return Bound(
        needed_tok=batch * lens_tok.mean() / max(is_valid.mean(), 1 / SAMPLE),
        trained_tok=batch * valid_tok.mean(),
        trained_len_tok=float(valid_tok.mean()),
        tokens_per_s=scenario.num_servers * per_server,
        log_prob_s=0.0 if scenario.why_two_passes() is None else cost.log_prob_s(*sums),
        train_s=cost.train_s(*sums),
        update_s=scenario.update_s,
    )


def best_tokens_per_s(cost: StepCost, lens_tok: np.ndarray, *, prompt_len_tok: int, max_num_seqs: int) -> float:
    """What one server generates in the steady state, with the batch that suits it best; all requests are prefilled."""
    mean_tok = lens_tok.mean()
    context_tok = _mean_context_tok(lens_tok, prompt_len_tok) + cost.request_kv_tok
    most = max(1, min(max_num_seqs, int(cost.kv_room_tok / context_tok)))
    batch = np.arange(1, most + 1)
    step_s = cost.batch_s(batch) + batch * cost.per_kv_token_s * context_tok
    prefill_s = batch * cost.prefill_s(prompt_len_tok) / mean_tok
    return float((batch / (step_s + prefill_s)).max())


def _mean_context_tok(lens_tok: np.ndarray, prompt_len_tok: int) -> float:
    """Of a running request in the steady state: the longer a request, the longer it runs, and the further it is. The
    mean is the prompt plus E[n^2] / 2 E[n].
    """
    return prompt_len_tok + (lens_tok**2).mean() / (2 * lens_tok.mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A row of the table."""

    system: System
    strategy: str
    stop_rule: str
    concurrency: int | None = None  # trajectories in flight; None = as the system decides
    is_baseline: bool = False
    is_plain: bool = False  # without drafts, where others have them

    @property
    def is_default(self) -> bool:
        """Whether it is this recipe with the options of its yaml."""
        changes = self.is_baseline or self.is_plain or self.concurrency is not None or CAP in self.system.overrides
        return (
            not changes and self.strategy == RolloutStrategy.PARTIAL and self.stop_rule == StopRuleName.FIRST_COMPLETED
        )


def verl_reference(scenario: Scenario) -> Candidate:
    """What speed-ups refer to: verl's sync mode."""
    return baseline(verl_sync(groups=scenario.train_batch_size))


def baseline(system: System) -> Candidate:
    """Another system, by the strategy and the stop rule among its overrides."""
    strategy, rule = (system.overrides[f"async_dapo.{key}"] for key in ("rollout_strategy", "stop_rule"))
    return Candidate(system=system, strategy=strategy, stop_rule=rule, is_baseline=True)


def baselines(scenario: Scenario) -> list[Candidate]:
    """verl's own modes, its reference first, and the systems this recipe learned from."""
    groups = scenario.train_batch_size
    pool_size = max(scenario.rollout_n, natural_concurrency(scenario))
    colocate = verl_colocate_async(groups=groups)
    systems = [
        colocate,
        *([] if scenario.drafts_accepted is None else [with_drafts(colocate, COLOCATE_WITH_DRAFTS)]),
        dynamic_sampling(batch=groups),
        async_dapo_2025(over_sampling=2 * groups),
        april(over_sampling=2 * groups),
        copris(pool_size=pool_size, over_sampling=_over_sampling(scenario, pool_size)),
    ]
    return [verl_reference(scenario), *map(baseline, systems)]


def recipe_candidates(
    scenario: Scenario, *, strategies: Sequence[RolloutStrategy], pool_sizes: Sequence[int] = ()
) -> list[Candidate]:
    """This recipe: strategies x stop rules, with the pool that sizes itself and with every pool size; with drafts where
    their acceptance is known, and once without."""
    rows = []
    for strategy in strategies:
        for rule in StopRuleName:
            if rule is StopRuleName.DRAIN and strategy is not RolloutStrategy.DISCARD:
                continue  # nothing is interrupted, so there is nothing to keep: the same as discard
            if rule is StopRuleName.FIFO and strategy is RolloutStrategy.CONSISTENT:
                continue  # it awaits whatever runs under either rule
            row = partial(_row, strategy, rule, scenario.host_kv_gib)
            rows.append(row("auto", {}))
            rows += [row(str(size), pool_options(scenario, size), concurrency=size) for size in pool_sizes]
    if scenario.drafts_accepted is None:
        return rows
    plain = [
        replace(one, system=replace(one.system, name=f"{one.system.name}, no drafts"), is_plain=True)
        for one in rows
        if one.is_default
    ]
    return [replace(one, system=with_drafts(one.system)) for one in rows] + plain


def with_drafts(system: System, name: str | None = None) -> System:
    """The same with drafts, which change none of its decisions."""
    return replace(system.with_overrides({DRAFTS: Drafts.SUFFIX.value}), name=name or system.name)


def _row(
    strategy: RolloutStrategy,
    rule: StopRuleName,
    host_kv_gib: int,
    ending: str,
    options: Mapping[str, Any],
    **traits: Any,
) -> Candidate:
    """
    Args:
        host_kv_gib: of each GPU, for a strategy that keeps KV there.
        ending: of its name.
        options: of the `async_dapo` node, beside strategy and stop rule.
        traits: of the candidate, by name.
    """
    chosen: dict[str, Any] = {"rollout_strategy": strategy.value, "stop_rule": rule.value}
    if strategy is RolloutStrategy.PARTIAL_STALE_KV:
        chosen["host_kv_gib"] = host_kv_gib
    system = recipe(f"{strategy} {rule} {ending}", **chosen, **options)
    return Candidate(system=system, strategy=strategy, stop_rule=rule, **traits)


def pool_options(scenario: Scenario, pool_size: int) -> dict[str, int]:
    """Options that keep `pool_size` trajectories in flight until the stop."""
    return {
        "rollout_pool_size": pool_size,
        "max_loads_per_server": min(VLLM_CALL_LIMIT - 1, -(-pool_size // scenario.num_servers)),
        "over_sampling_batch_size": _over_sampling(scenario, pool_size),
    }


def natural_concurrency(scenario: Scenario) -> int:
    """Trajectories in flight that fill the KV cache, at the mean context of a running one."""
    answers = scenario.workload().answers(512)
    lens_tok = np.array([one.response_lens_tok for one in answers], dtype=float)
    cost = scenario.step_cost()
    context_tok = _mean_context_tok(lens_tok, scenario.prompt_len_tok) + cost.request_kv_tok
    return max(1, int(scenario.num_servers * cost.kv_room_tok / context_tok))


def _over_sampling(scenario: Scenario, pool_size: int) -> int:
    """Groups to hold so that the pool stays full until B are valid. Those that never start cost nothing."""
    return 2 * scenario.train_batch_size + -(-2 * pool_size // scenario.rollout_n)
