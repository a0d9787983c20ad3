"""A plan as a table for the terminal, and as JSON."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from .candidates import COLOCATE_WITH_DRAFTS
from .inputs import Inputs
from .recommend import Advice
from .scenario import Scenario
from .sweep import Row
from .systems import VERL, VERL_COLOCATE_ASYNC

TOP = 6  # of the fastest rows

COLUMNS: dict[str, Callable[[Row], str]] = {
    "system": lambda row: row.candidate.system.name,
    "step s": lambda row: _seconds(row.mean.step_s),
    "rollout s": lambda row: _seconds(row.mean.rollout_s),
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


def shown(rows: Sequence[Row], advice: Advice) -> list[Row]:
    """The first row, verl colocate_async with and without drafts, this recipe's default too, the recommended ones, the
    `TOP` fastest, and all that are faster than the one to paste. In the order of `rows`."""
    fastest = sorted(rows, key=lambda row: -row.speed_up)[:TOP]
    kept = {id(row) for row in (rows[0], *fastest, *(choice.row for choice in advice.choices.values()))}
    named = (VERL_COLOCATE_ASYNC, COLOCATE_WITH_DRAFTS)
    kept |= {
        id(row)
        for row in rows
        if row.candidate.is_default or row.candidate.is_plain or row.candidate.system.name in named
    }
    if advice.to_paste is not None:
        kept |= {id(row) for row in rows if row.speed_up > advice.to_paste.row.speed_up}
    return [row for row in rows if id(row) in kept]


def table(rows: Sequence[Row], advice: Advice, *, everything: bool) -> str:
    """Rows, with the choice that each one is; the one to paste has a star."""
    visible = list(rows) if everything else shown(rows, advice)
    cells = [list(COLUMNS), *([column(row) for column in COLUMNS.values()] for row in visible)]
    choices = ["", *(" ".join(advice.names_of(row)) for row in visible)]
    pasted = None if advice.to_paste is None else advice.to_paste.row
    marks = [" ", *("*" if row is pasted else " " for row in visible)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    lines = []
    for mark, line, choice in zip(marks, cells, choices, strict=True):
        rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        lines.append("  ".join([mark + line[0].ljust(widths[0]), *rest, choice]).rstrip())
    left_out = len(rows) - len(visible)
    more = [f"({left_out} slower rows are not shown: --all)"] if left_out else []
    return "\n".join([*lines, *more, "", MEANINGS])


def in_words(advice: Advice, inputs: Inputs) -> str:
    """The choices with their reasons, what to be wary of, and the one to paste."""
    if not advice.choices:
        return (
            f"No setting has a length bias within {inputs.max_length_bias} and an off-policy share of at most "
            f"{inputs.max_off_policy}: relax max_length_bias or max_off_policy."
        )
    lines = [advice.compared] if advice.compared else []
    for name, choice in advice.choices.items():
        mean = choice.row.mean
        lines.append(
            f"{name:<9} {choice.row.candidate.system.name}: step {_seconds(mean.step_s)} s "
            f"({choice.row.speed_up:.2f}x), off-policy {mean.off_policy_ratio:.2f}, staleness "
            f"{mean.staleness_mean:.2f}/{mean.staleness_max}, waste {mean.waste_ratio:.2f}\n          {choice.reason}"
        )
    lines += [f"warning: {warning}" for warning in advice.warnings]
    if advice.to_paste is None:
        assert advice.verls_own is not None
        return "\n".join([*lines, stay_with(advice.verls_own)])
    overrides = " \\\n    ".join(advice.to_paste.overrides)
    lines.append(f"Recommended ({advice.name_to_paste}):\n    {overrides}")
    return "\n".join(lines)


def stay_with(mode: Row) -> str:
    """What to do where this recipe gains nothing."""
    name, _, split = mode.candidate.system.name.removeprefix(VERL).partition(", ")
    where = f" ({split})" if split else ""
    return (
        f"Stay with verl's own mode: trainer.v1.trainer_mode={name}{where} is as fast as this recipe at its off-policy "
        f"share or a lower one: step {_seconds(mode.mean.step_s)} s, off-policy {mode.mean.off_policy_ratio:.2f}"
    )


def as_json(inputs: Inputs, scenario: Scenario, rows: Sequence[Row], advice: Advice) -> str:
    """Everything: what was asked, what was assumed, every measure of every row."""
    choices = {
        name: {"system": choice.row.candidate.system.name, "overrides": choice.overrides, "reason": choice.reason}
        for name, choice in advice.choices.items()
    }
    return json.dumps(
        {
            "inputs": asdict(inputs),
            "step_cost": asdict(scenario.step_cost()),
            "rows": [_row_dict(row) for row in rows],
            "choices": choices,
            "recommended": None if advice.name_to_paste is None else choices[advice.name_to_paste],
            "stay_with": None if advice.verls_own is None else advice.verls_own.candidate.system.name,
            "compared": advice.compared,
            "warnings": advice.warnings,
        },
        indent=2,
        default=str,
    )


def _row_dict(row: Row) -> dict[str, Any]:
    candidate, mean = row.candidate, row.mean
    of_mean = (
        "tokens_per_s_per_gpu", "rollout_tokens_per_s_per_gpu", "idle_ratio", "server_idle_ratio", "waste_ratio",
        "off_policy_ratio", "staleness_mean", "trained_len_tok", "prefill_ratio",
    )  # fmt: skip
    of_row = ("speed_up", "bound_s", "bound_share", "length_bias")
    return {
        "system": candidate.system.name,
        **{name: getattr(candidate, name) for name in ("is_baseline", "strategy", "stop_rule", "concurrency")},
        "overrides": dict(candidate.system.overrides),
        **{name: getattr(row, name) for name in of_row},
        **asdict(mean),
        **{name: getattr(mean, name) for name in of_mean},
    }


def _seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _short(count: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:.0f}"
