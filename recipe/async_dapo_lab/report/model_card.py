"""The model card of an exported checkpoint: what it was trained from, how, and what its run measured."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from ...async_dapo.record import keys
from ...async_dapo.record.words import counted
from .run import Run, after_the_first


def model_card(run: Run | None, *, step: int, base: str, is_adapter: bool) -> str:
    """As Markdown.

    Args:
        run: None where its record is not beside its checkpoints.
        base: the model that training began with, a path or a name on the hub.
    """
    return "\n".join([*_head(base), "", *_body(run, step, base, is_adapter)]) + "\n"


def _head(base: str) -> Iterator[str]:
    yield "---"
    if base and not base.startswith("/"):  # a hub wants names of its own models
        yield f"base_model: {base}"
    yield "library_name: transformers"
    yield "pipeline_tag: text-generation"
    yield "tags: [reinforcement-learning, dapo, verl]"
    yield "---"


def _body(run: Run | None, step: int, base: str, is_adapter: bool) -> Iterator[str]:
    yield f"# Step {step} of {run.description.name if run is not None else 'a run'}"
    yield ""
    what = "The LoRA adapter" if is_adapter else "The model"
    began = f"`{Path(base).name if base.startswith('/') else base}`" if base else "a model that is not recorded"
    yield f"{what} after {counted(step, 'step')} of DAPO (async DAPO for verl) from {began}."
    yield "Weights are in bfloat16."
    if run is None:
        return
    if points := run.accuracy():
        yield ""
        yield "## Accuracy"
        yield ""
        yield f"| Step | {run.accuracy_name()} |"
        yield "|---|---|"
        for at, accuracy in points:
            yield f"| {at}{' (this model)' if at == step else ''} | {accuracy:.4g} |"
        if step not in dict(points):
            yield ""
            yield f"Step {step} itself was not validated."
    yield ""
    yield "## Training"
    yield ""
    yield "| What | Value |"
    yield "|---|---|"
    for name, value in _facts(run, step):
        yield f"| {name} | {value} |"


def _facts(run: Run, step: int) -> Iterator[tuple[str, str]]:
    description = run.description
    yield "system", description.system
    if not math.isnan(description.started_s):
        yield "started", f"{datetime.fromtimestamp(description.started_s, UTC):%Y-%m-%d %H:%M} UTC"
    if description.machine:
        yield "machine", description.machine
    if description.versions:
        yield "versions", ", ".join(f"{name} {version}" for name, version in description.versions.items())
    yield from ((name, str(value)) for name, value in description.settings.items())
    until = [values for at, values in run.by_step.items() if at <= step]
    if trained := sum(values.get(keys.TOKENS_TRAINED, 0.0) for values in until):
        yield "tokens trained", f"{trained:,.0f}"
    off_policy = [ratio for at, ratio in run.series(keys.OFF_POLICY) if at <= step]
    if off_policy:
        yield "tokens of older policy versions", f"{100 * fmean(after_the_first(off_policy)):.0f} %"
