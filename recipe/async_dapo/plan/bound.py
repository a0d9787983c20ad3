"""The fastest step that the GPUs allow, whatever is scheduled how.

A step needs the tokens of B valid groups, and of the groups that are filtered on the way to them; engines that are
never idle, with the batch that generates most, take so long for them; then comes the training. No system that trains
on B groups of its own step's cost is faster in the long run, unless it prefers short answers.
"""

from dataclasses import dataclass

import numpy as np

from .costs import StepCost
from .scenario import Scenario
from .workload import ANSWERS

SAMPLE = 4096  # prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Of one step."""

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


def bound_of(scenario: Scenario) -> Bound:
    groups = [group.prompt[ANSWERS] for group in scenario.workload().draw(SAMPLE, step=0)]
    lens_tok = np.array([group.response_lens_tok for group in groups], dtype=float)
    is_valid = np.array([min(group.metrics) < max(group.metrics) for group in groups])
    valid_tok = lens_tok[is_valid] if is_valid.any() else lens_tok
    batch = scenario.train_batch_size * scenario.rollout_n
    whole = scenario.prompt_len_tok + valid_tok
    sums = batch * whole.mean(), batch * (whole**2).mean()
    cost = scenario.training_cost()
    per_server = best_tokens_per_s(
        scenario.step_cost(),
        lens_tok.ravel(),
        prompt_len_tok=scenario.prompt_len_tok,
        max_num_seqs=scenario.max_num_seqs,
    )
    return Bound(
        needed_tok=batch * lens_tok.mean() / max(is_valid.mean(), 1 / SAMPLE),
        trained_tok=batch * valid_tok.mean(),
        trained_len_tok=float(valid_tok.mean()),
        tokens_per_s=scenario.num_servers * per_server,
        log_prob_s=cost.log_prob_s(*sums),
        train_s=cost.train_s(*sums),
        update_s=scenario.weight_update_s,
    )


def best_tokens_per_s(cost: StepCost, lens_tok: np.ndarray, *, prompt_len_tok: int, max_num_seqs: int) -> float:
    """What one server generates in the steady state, with the batch that suits it best.

    In the steady state a running request is the longer, and the further, the longer it is: its mean context is the
    prompt plus E[n^2] / 2 E[n]. Every request is prefilled once.
    """
    mean_tok = lens_tok.mean()
    context_tok = prompt_len_tok + (lens_tok**2).mean() / (2 * mean_tok)
    most = max(1, min(max_num_seqs, int(cost.kv_room_tok / context_tok)))
    batch = np.arange(1, most + 1)
    step_s = cost.base_s + batch * (cost.per_request_s + cost.per_kv_token_s * context_tok)
    prefill_s = batch * cost.prefill_s(prompt_len_tok) / mean_tok
    return float((batch / (step_s + prefill_s)).max())
