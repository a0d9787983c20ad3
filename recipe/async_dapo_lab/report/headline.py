"""A run in one sentence, and beside a run of verl alone."""

from collections.abc import Iterator

from ...async_dapo.record import keys
from ...async_dapo.record.console import percent, seconds
from .run import Run

NOTHING = 0.0005  # shares below it read as none


def headline(run: Run, baseline: Run | None = None) -> str:
    """For example `step 41.2 s; engines idle 14 %; nothing thrown away; ...`.

    Args:
        baseline: a run of verl alone, to compare with.
    """
    return "; ".join(_parts(run, baseline))


def speed_up(run: Run, baseline: Run) -> float | None:
    """How many steps of `run` pass in one of `baseline`, by their medians."""
    ours_s, theirs_s = run.median(keys.STEP_S), baseline.median(keys.STEP_S)
    return theirs_s / ours_s if ours_s and theirs_s else None


def _parts(run: Run, baseline: Run | None) -> Iterator[str]:
    step_s = run.median(keys.STEP_S)
    yield (
        "no step was trained"
        if step_s is None
        else f"step {seconds(step_s)} s (median of {len(run.steady(keys.STEP_S))})"
    )
    if (idle := run.idle_ratio()) is not None:
        yield f"engines idle {percent(idle)} of the round"
    if (drafts := run.mean(keys.DRAFT_TOK_PER_STEP)) is not None:
        yield f"drafts: {drafts:.2f} tokens of a response in a step of an engine"
    if (waste := run.waste_ratio()) is not None:
        yield "nothing thrown away" if waste < NOTHING else f"{percent(waste)} of tokens thrown away"
    if (off_policy := run.mean(keys.OFF_POLICY)) is not None:
        stale = run.mean(keys.STALENESS_MEAN) or 0.0
        yield (
            "all tokens of the newest policy"
            if off_policy < NOTHING
            else f"{percent(off_policy)} of tokens from older policies (mean staleness {stale:.2g})"
        )
    if failed := int(run.total(keys.FAILED_GROUPS)):
        yield f"{failed} groups failed"
    if len(accuracy := run.accuracy()) > 1:
        yield f"accuracy {accuracy[0][1]:.2f} to {accuracy[-1][1]:.2f} ({run.accuracy_name()})"
    if baseline is not None and (faster := speed_up(run, baseline)) is not None:
        yield f"measured {faster:.2f}x of {baseline.name}"
