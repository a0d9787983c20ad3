"""A plan as a table for the terminal, and as JSON."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from .inputs import Inputs
from .recommend import Recommendation, screening_advice
from .scenario import Scenario
from .sweep import Row

COLUMNS: dict[str, Callable[[Row], str]] = {
    "system": lambda row: row.candidate.system.name,
    "step s": lambda row: _seconds(row.mean.step_s),
    "rollout s": lambda row: _seconds(row.mean.rollout_s),
    "tok/s/GPU": lambda row: f"{row.mean.tokens_per_s_per_gpu:.0f}",
    "speed-up": lambda row: f"{row.speed_up:.2f}",
    "of bound": lambda row: f"{row.bound_share:.2f}",
    "idle": lambda row: f"{row.mean.idle_ratio:.2f}",
    "preempted": lambda row: _short(row.mean.recomputed_tok),
    "re-prefilled": lambda row: _short(row.mean.reprefilled_tok),
    "waste": lambda row: f"{row.mean.waste_ratio:.2f}",
    "off-policy": lambda row: f"{row.mean.off_policy_ratio:.2f}",
    "staleness": lambda row: f"{row.mean.staleness_mean:.2f}/{row.mean.staleness_max}",
    "length bias": lambda row: f"{row.length_bias:.2f}",
}

MEANINGS = """\
tok/s/GPU: trained tokens over the whole step. speed-up: of it, over the first row. of bound: seconds that the needed
tokens take at the engines' best throughput, plus training, over the row's. idle: empty engine places, of those used at
the peak. preempted, re-prefilled: context tokens computed again in a step. waste: thrown-away over thrown-away plus
trained tokens. staleness: mean/max, in versions. length bias: mean trained over mean natural length."""


def describe(scenario: Scenario) -> str:
    """The setting in two lines."""
    cost = scenario.step_cost()
    return (
        f"{scenario.model.name} ({scenario.model.weight_bytes / 1e9:.1f} GB) on {scenario.num_servers} servers of "
        f"{scenario.tensor_parallel_size} x {scenario.accelerator.name}, B={scenario.train_batch_size}, "
        f"n={scenario.rollout_n}, responses up to {scenario.max_response_length} tokens\n"
        f"KV cache: {cost.kv_room_tok} tokens per server; a decode step takes {1e3 * cost.base_s:.1f} ms + "
        f"{1e3 * cost.per_request_s:.3f} ms per request + {1e6 * cost.per_kv_token_s:.3f} us per token of KV cache"
    )


def table(rows: Sequence[Row], chosen: Recommendation | None) -> str:
    """All rows; the recommended one is marked."""
    cells = [list(COLUMNS), *([column(row) for column in COLUMNS.values()] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    lines = []
    for index, line in enumerate(cells):
        mark = "*" if chosen is not None and index > 0 and rows[index - 1] is chosen.row else " "
        rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        lines.append("  ".join([mark + line[0].ljust(widths[0]), *rest]))
    return "\n".join([*lines, "", MEANINGS])


def advice(chosen: Recommendation | None, inputs: Inputs, rows: Sequence[Row], scenario: Scenario) -> str:
    if chosen is None:
        return (
            f"No setting has a length bias within {inputs.max_length_bias} and an off-policy share of at most "
            f"{inputs.max_off_policy}: relax max_length_bias or max_off_policy."
        )
    overrides = " \\\n    ".join(chosen.overrides)
    screening = screening_advice(rows, chosen.row, scenario)
    return f"Recommended: {chosen.reason}\n    {overrides}" + (f"\n{screening}" if screening else "")


def as_json(inputs: Inputs, scenario: Scenario, rows: Sequence[Row], chosen: Recommendation | None) -> str:
    """Everything: what was asked, what was assumed, every measure of every row."""
    recommended = chosen and {"system": chosen.row.candidate.system.name, "overrides": chosen.overrides}
    return json.dumps(
        {
            "inputs": inputs.as_dict(),
            "step_cost": asdict(scenario.step_cost()),
            "rows": [_row_dict(row) for row in rows],
            "recommended": recommended,
        },
        indent=2,
        default=str,
    )


def _row_dict(row: Row) -> dict[str, Any]:
    candidate, mean = row.candidate, row.mean
    derived = (
        "tokens_per_s_per_gpu", "rollout_tokens_per_s_per_gpu", "idle_ratio", "server_idle_ratio", "waste_ratio",
        "off_policy_ratio", "staleness_mean", "trained_len_tok", "prefill_ratio",
    )  # fmt: skip
    return {
        "system": candidate.system.name,
        "is_baseline": candidate.is_baseline,
        "strategy": candidate.strategy,
        "stop_rule": candidate.stop_rule,
        "concurrency": candidate.concurrency,
        "overrides": dict(candidate.system.overrides),
        "speed_up": row.speed_up,
        "bound_s": row.bound_s,
        "bound_share": row.bound_share,
        "length_bias": row.length_bias,
        **asdict(mean),
        **{name: getattr(mean, name) for name in derived},
    }


def _seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _short(count: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:.0f}"
