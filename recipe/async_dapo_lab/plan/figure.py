"""One figure per plan, as a PNG: where the time of a step goes, and speed against freshness."""

from collections.abc import Callable, Sequence
from typing import Any

from ...async_dapo.option_values import ConfigError
from .measures import StepMeasure
from .recommend import Advice, pareto_front
from .sweep import Row

# Together a whole step.
PARTS: tuple[tuple[str, Callable[[StepMeasure], float], str], ...] = (
    ("rollout", lambda mean: mean.rollout_s, "#4269d0"),
    ("log-probs", lambda mean: mean.log_prob_s, "#efb118"),
    ("training", lambda mean: mean.train_s, "#6cc5b0"),
    ("weight update", lambda mean: mean.step_s - mean.rollout_s - mean.log_prob_s - mean.train_s, "#9c6b4e"),
)
BASELINE, OURS, CHOSEN = "#9c9c9c", "#4269d0", "#ff725c"


def draw(path: str, rows: Sequence[Row], advice: Advice, title: str) -> None:
    """
    Raises:
        ConfigError: without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("figure", path, "matplotlib is not installed; install it") from None
    figure = Figure(figsize=(14, 2 + 0.26 * len(rows)), layout="constrained")
    bars, dots = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_bars(bars, rows, advice)
    _draw_front(dots, rows, advice)
    handles, labels = bars.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=len(PARTS), frameon=False)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=120)


def _draw_bars(bars: Any, rows: Sequence[Row], advice: Advice) -> None:
    left = [0.0] * len(rows)
    for label, seconds_of, colour in PARTS:
        seconds = [seconds_of(row.mean) for row in rows]
        bars.barh(range(len(rows)), seconds, left=left, color=colour, label=label)
        left = [start + width for start, width in zip(left, seconds, strict=True)]
    for place, row in enumerate(rows):
        bars.text(left[place], place, f" {row.mean.step_s:.4g}", va="center", fontsize=8)
    bars.set_yticks(range(len(rows)), [_label(row, advice) for row in rows])
    for text, row in zip(bars.get_yticklabels(), rows, strict=True):
        if advice.names_of(row):
            text.set_color(CHOSEN)
            text.set_fontweight("bold")
    bars.set_xlim(0, 1.1 * max(left))
    bars.invert_yaxis()
    bars.set_xlabel("seconds of a step")


def _draw_front(dots: Any, rows: Sequence[Row], advice: Advice) -> None:
    front = pareto_front(rows)
    dots.plot(
        [row.mean.off_policy_ratio for row in front],
        [row.speed_up for row in front],
        color=BASELINE,
        linewidth=1,
        zorder=1,
        label="none is faster and fresher",
    )
    for row in rows:
        dots.scatter(row.mean.off_policy_ratio, row.speed_up, color=_colour(row, advice), s=30, zorder=2)
    for row in {id(choice.row): choice.row for choice in advice.choices.values()}.values():
        place = (row.mean.off_policy_ratio, row.speed_up)
        dots.annotate(", ".join(advice.names_of(row)), place, xytext=(6, -10), textcoords="offset points", fontsize=8)
    dots.set_xlabel("off-policy share of trained tokens")
    dots.set_ylabel(f"trained tokens per second, over {rows[0].candidate.system.name}")
    dots.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, fontsize=8)
    dots.grid(alpha=0.3)


def _label(row: Row, advice: Advice) -> str:
    names = advice.names_of(row)
    return f"{row.candidate.system.name} ({', '.join(names)})" if names else row.candidate.system.name


def _colour(row: Row, advice: Advice) -> str:
    if advice.names_of(row):
        return CHOSEN
    return BASELINE if row.candidate.is_baseline else OURS
