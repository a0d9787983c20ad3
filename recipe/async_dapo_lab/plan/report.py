"""A plan as a table for the terminal, and as JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .fit import Promise
from .inputs import Inputs
from .recommend import MOST_LENGTH_BIAS, Advice, overrides_of
from .scenario import Scenario
from .sweep import Row
from .systems import VERL

COLUMNS: dict[str, Callable[[Row], str]] = {
    "system": lambda row: row.candidate.system.name,
    "step s": lambda row: seconds(row.mean.step_s),
    "rollout s": lambda row: seconds(row.mean.rollout_s),
    "tok/s/GPU": lambda row: f"{row.mean.tokens_per_s_per_gpu:.0f}",
    "speed-up": lambda row: f"{row.speed_up:.2f}",
    "of bound": lambda row: f"{row.bound_share:.2f}",
    "log-probs": lambda row: f"{row.mean.log_prob_s / row.mean.step_s:.2f}",
    "idle": lambda row: f"{row.mean.idle_ratio:.2f}",
    "preempted": lambda row: _short(row.mean.recomputed_tok),
    "re-prefilled": lambda row: _short(row.mean.reprefilled_tok),
    "waste": lambda row: f"{row.mean.waste_ratio:.2f}",
    "off-policy": lambda row: f"{row.mean.off_policy_ratio:.2f}",
    "staleness": lambda row: f"{row.mean.staleness_mean:.2f}/{row.mean.staleness_max}",
    "length bias": lambda row: f"{row.length_bias:.2f}",
}

MEANINGS = """\
tok/s/GPU: tokens in the loss over the whole step. speed-up: of it, over the first row. of bound: seconds that the
needed tokens take at the engines' best throughput without drafts, plus training, over the row's. log-probs: share of a
step that recomputes them, which `bypass` saves. idle: empty capacity, of what was used at the peak. preempted,
re-prefilled: context tokens computed again in a step. waste: tokens thrown away, or too stale for the loss, of these
and those in the loss. off-policy: share of tokens in the loss. staleness: of these, mean/max in versions. length bias:
mean trained over mean natural length. Steps are those of the steady state; differences under 2 % are noise."""


def describe(scenario: Scenario) -> str:
    """The setting in two lines."""
    cost = scenario.step_cost()
    held = f", {cost.request_kv_tok} of them for each request's windows and state" if cost.request_kv_tok else ""
    experts = f" + up to {1e3 * cost.experts_s:.1f} ms for experts" if cost.experts_s else ""
    return (
        f"{scenario.model.name} ({scenario.model.weight_bytes / 1e9:.1f} GB) on {scenario.num_servers} servers of "
        f"{scenario.tensor_parallel_size} x {scenario.accelerator.name}, B={scenario.train_batch_size}, "
        f"n={scenario.rollout_n}, responses up to {scenario.max_response_length} tokens\n"
        f"KV cache: {cost.kv_room_tok} tokens per server{held}; a decode step takes {1e3 * cost.base_s:.1f} ms + "
        f"{1e3 * cost.per_request_s:.3f} ms per request + {1e6 * cost.per_kv_token_s:.3f} us per token of KV cache"
        f"{experts}"
    )


def table(rows: Sequence[Row], advice: Advice) -> str:
    """Rows, with the choice that each one is; the one to paste has a star."""
    cells = [list(COLUMNS), *([column(row) for column in COLUMNS.values()] for row in rows)]
    choices = ["", *(" ".join(name for name, one in advice.choices.items() if one is row) for row in rows)]
    marks = [" ", *("*" if advice.pasted and advice.choices[advice.pasted] is row else " " for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    lines = []
    for mark, line, choice in zip(marks, cells, choices, strict=True):
        rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        lines.append("  ".join([mark + line[0].ljust(widths[0]), *rest, choice]).rstrip())
    return "\n".join([*lines, "", MEANINGS])


def in_words(advice: Advice) -> str:
    """The comparison with verl, what to be wary of, and what to paste."""
    if not advice.choices:
        return (
            f"No row of this recipe has fresh tokens, and trained lengths within {MOST_LENGTH_BIAS:.0%} of the natural "
            "ones: set a lower async_dapo.max_staleness or async_dapo.max_partial_share."
        )
    lines = [advice.compared] if advice.compared else []
    lines += [f"warning: {warning}" for warning in advice.warnings]
    if advice.pasted is None:
        assert advice.verls_own is not None
        return "\n".join([*lines, stay_with(advice.verls_own)])
    overrides = " \\\n    ".join(overrides_of(advice.choices[advice.pasted]))
    return "\n".join([*lines, f"Recommended ({advice.pasted}):\n    {overrides}"])


def stay_with(mode: Row) -> str:
    """What to do where this recipe gains nothing."""
    name, _, split = mode.candidate.system.name.removeprefix(VERL).partition(", ")
    where = f" ({split})" if split else ""
    return (
        f"Stay with verl's own mode: trainer.v1.trainer_mode={name}{where} is as fast as this recipe at its off-policy "
        f"share or a lower one: step {seconds(mode.mean.step_s)} s, off-policy {mode.mean.off_policy_ratio:.2f}"
    )


def as_json(
    inputs: Inputs,
    scenario: Scenario,
    rows: Sequence[Row],
    advice: Advice,
    assumed: Mapping[str, Any],
    promised: Promise | None,
) -> str:
    """Everything: what was asked, what was assumed, what a record says, every measure of every row."""
    choices = {
        name: {"system": row.candidate.system.name, "overrides": overrides_of(row)}
        for name, row in advice.choices.items()
    }
    return json.dumps(
        {
            "inputs": asdict(inputs),
            "assumed": dict(assumed),
            **({} if promised is None else promised.as_dict()),
            "step_cost": asdict(scenario.step_cost()),
            "rows": [_row_dict(row) for row in rows],
            "choices": choices,
            "recommended": None if advice.pasted is None else choices[advice.pasted],
            "stay_with": None if advice.verls_own is None else advice.verls_own.candidate.system.name,
            "compared": advice.compared,
            "warnings": advice.warnings,
        },
        indent=2,
        default=str,
    )


def _row_dict(row: Row) -> dict[str, Any]:
    candidate, mean = row.candidate, row.mean
    of_mean = ("tokens_per_s_per_gpu", "idle_ratio", "waste_ratio", "off_policy_ratio", "staleness_mean")
    return {
        "system": candidate.system.name,
        **{name: getattr(candidate, name) for name in ("is_baseline", "strategy", "stop_rule")},
        "overrides": dict(candidate.system.overrides),
        **{name: getattr(row, name) for name in ("speed_up", "bound_s", "bound_share", "length_bias")},
        **asdict(mean),
        **{name: getattr(mean, name) for name in of_mean},
    }


def seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _short(count: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:.0f}"
