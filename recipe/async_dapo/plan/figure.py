"""One figure per plan: where the time of a step goes, and speed against freshness. PNG (matplotlib) or HTML."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from ..config import ConfigError
from .sweep import Row

PARTS = (
    ("rollout", "rollout_s", "#4269d0"),
    ("log-probs", "log_prob_s", "#efb118"),
    ("training", "train_s", "#6cc5b0"),
)
BASELINE, OURS, CHOSEN = "#9c9c9c", "#4269d0", "#ff725c"


def draw(path: str, rows: Sequence[Row], chosen: Row | None, title: str) -> None:
    """Write the figure; the ending of `path` chooses the format.

    Raises:
        ConfigError: for another ending, or a PNG without matplotlib.
    """
    match Path(path).suffix:
        case ".png":
            _draw_png(path, rows, chosen, title)
        case ".html":
            Path(path).write_text(_html(rows, chosen, title))
        case _:
            raise ConfigError("figure", path, "must end in .png or .html")


def _draw_png(path: str, rows: Sequence[Row], chosen: Row | None, title: str) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("figure", path, "matplotlib is not installed; install it, or choose a .html file") from None
    figure = Figure(figsize=(13, 1.5 + 0.24 * len(rows)), layout="constrained")
    bars, dots = figure.subplots(1, 2, width_ratios=(3, 2))
    names = [row.candidate.system.name for row in rows]
    left = [0.0] * len(rows)
    for label, attribute, colour in PARTS:
        seconds = [getattr(row.mean, attribute) for row in rows]
        bars.barh(names, seconds, left=left, color=colour, label=label)
        left = [start + width for start, width in zip(left, seconds, strict=True)]
    bars.invert_yaxis()
    bars.set_xlabel("seconds of a step")
    bars.legend()
    for row in rows:
        dots.scatter(row.mean.off_policy_ratio, row.speed_up, color=_colour(row, chosen), s=30)
    dots.set_xlabel("off-policy share of trained tokens")
    dots.set_ylabel(f"trained tokens per second, over {names[0]}")
    dots.grid(alpha=0.3)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=120)


def _html(rows: Sequence[Row], chosen: Row | None, title: str) -> str:
    """A page without scripts: one bar per row, cut into the parts of a step."""
    longest = max(row.mean.step_s for row in rows)
    lines = []
    for row in rows:
        bar = "".join(
            f'<span style="display:inline-block;height:1em;background:{colour};width:'
            f'{40 * seconds / longest:.2f}em" title="{label} {seconds:.0f} s"></span>'
            for label, seconds, colour in ((label, getattr(row.mean, name), colour) for label, name, colour in PARTS)
        )
        weight = "bold" if row is chosen else "normal"
        lines.append(
            f'<tr style="font-weight:{weight}"><td>{escape(row.candidate.system.name)}</td><td>{bar}</td>'
            f"<td>{row.mean.step_s:.0f} s</td><td>{row.speed_up:.2f}x</td><td>{row.mean.off_policy_ratio:.2f}</td>"
            f"<td>{row.mean.waste_ratio:.2f}</td><td>{row.length_bias:.2f}</td></tr>"
        )
    legend = ", ".join(f'<span style="color:{colour}">{label}</span>' for label, _, colour in PARTS)
    return (
        f'<!doctype html><meta charset="utf-8"><title>plan</title>'
        f'<body style="font-family:sans-serif"><p>{escape(title)}</p>'
        f"<table><tr><th>system</th><th>step: {legend}</th><th>step</th><th>speed-up</th><th>off-policy</th>"
        f"<th>waste</th><th>length bias</th></tr>{''.join(lines)}</table></body>"
    )


def _colour(row: Row, chosen: Row | None) -> str:
    if row is chosen:
        return CHOSEN
    return BASELINE if row.candidate.is_baseline else OURS
