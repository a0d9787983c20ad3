"""A run in one sentence, and beside a run of verl alone."""

from collections.abc import Iterator

from ...async_dapo.record import keys
from ...async_dapo.record.words import counted, percent, seconds
from .run import Run

NOTHING = 0.0005  # shares below it read as none


TOKENS = "perf/total_num_tokens"  # verl's, of the prompts and responses of a step
_ALIKE = 2.0  # most that the tokens of steps of one job differ by: the filter and early stops choose among lengths
# What makes two runs the same job, where both say it.
_OF_A_JOB = ("model", "data.train_batch_size", "rollout.n", "data.max_response_length")


def headline(run: Run, baseline: Run | None = None) -> str:
    """For example `step 41.2 s; 14 % of the engines' places empty; nothing thrown away; ...`.

    Args:
        baseline: a run of verl alone, to compare with.
    """
    return "; ".join(_parts(run, baseline))


def unlike(run: Run, baseline: Run) -> str:
    """Why the seconds of two runs' steps say nothing of each other; empty for two runs of one job."""
    ours, theirs = run.description.settings, baseline.description.settings
    for name in _OF_A_JOB:
        if name in ours and name in theirs and ours[name] != theirs[name]:
            return f"{name} is {theirs[name]} there"
    ours_tok, theirs_tok = run.median(TOKENS), baseline.median(TOKENS)
    if not ours_tok or not theirs_tok:
        return f"one of them does not say how many tokens a step has ({TOKENS})"
    if max(ours_tok, theirs_tok) > _ALIKE * min(ours_tok, theirs_tok):
        return f"a step has {theirs_tok:,.0f} tokens there, and {ours_tok:,.0f} here"
    return ""


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
        yield f"{percent(idle)} of the engines' places for requests empty"
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
        yield f"{counted(failed, 'group')} failed"
    if len(accuracy := run.accuracy()) > 1:
        yield f"accuracy {accuracy[0][1]:.2f} to {accuracy[-1][1]:.2f} ({run.accuracy_name()})"
    if baseline is not None and (faster := speed_up(run, baseline)) is not None:
        why_not = unlike(run, baseline)
        if why_not:
            yield f"not compared with {baseline.name}: {why_not}"
        elif faster >= 1:
            yield f"its steps are {faster:.2f} times as fast as those of {baseline.name}"
        else:
            yield f"its steps take {1 / faster:.2f} times as long as those of {baseline.name}"
