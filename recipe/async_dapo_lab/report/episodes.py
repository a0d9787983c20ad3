"""Trained trajectories that a run has kept, token by token: what the policy said, under which of its versions, what
came from tools, and the reward. A line a trajectory; of several rows that one has, each is an episode of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from ...async_dapo.core.trajectory import Timed
from ..run_files import read_lines

NOT_SAMPLED = -1  # in place of a version: of a tool, or of a template
_DIGITS = 3

STYLE = (
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);padding:10px;border-radius:6px;"
    "max-height:none;line-height:1.7}.kept{text-decoration-skip-ink:none}.context{color:var(--ink);opacity:.55}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """
    Attributes:
        uid: of its row: of the prompt, the trajectory's number, the row's number in it.
        step: that trained it.
        versions: the policy version that sampled each token of the response; `NOT_SAMPLED` for others.
        log_probs: nats that they were sampled with; 0 for others.
        age: rounds that it was carried over.
        timed: of each of its turns, its requests to engines; empty where the record has none, as that of before a
            resume.
    """

    uid: str
    step: int
    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    versions: Sequence[int]
    log_probs: Sequence[float]
    reward: float
    age: int
    timed: Sequence[Sequence[Timed]] = ()

    def line(self) -> Mapping[str, Any]:
        log_probs = [round(value, _DIGITS) for value in self.log_probs]
        return {name: getattr(self, name) for name in self.__slots__} | {"log_probs": log_probs}

    @property
    def turns(self) -> int:
        """Sampled stretches, with something from outside between them."""
        return sum(is_sampled for is_sampled, _ in groupby(self.versions, key=lambda one: one != NOT_SAMPLED))

    @property
    def spans(self) -> Iterator["Span"]:
        """Tokens of the response that follow each other and have one origin."""
        rows = zip(self.versions, self.response_ids, self.log_probs, strict=True)
        for version, group in groupby(rows, key=lambda row: row[0]):
            tokens = list(group)
            yield Span(
                version=None if version == NOT_SAMPLED else version,
                ids=[token for _, token, _ in tokens],
                log_prob=sum(log_prob for *_, log_prob in tokens) / len(tokens),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """
    Attributes:
        version: None where no policy has sampled it.
        log_prob: mean over its tokens [nats].
    """

    version: int | None
    ids: Sequence[int]
    log_prob: float

    @property
    def words(self) -> str:
        count = _tokens(len(self.ids))
        if self.version is None:
            return f"{count} from outside: a tool's, or the template's; not trained"
        return f"{count} of policy version {self.version}, log-prob {self.log_prob:.3g} in the mean"


class Decoder(Protocol):
    """A tokenizer, as far as it is needed here."""

    def decode(self, ids: Sequence[int], /) -> str: ...


def read_episodes(path: Path) -> list[Episode]:
    return [
        Episode(**line | {"timed": [[Timed(*one) for one in turn] for turn in line.get("timed", ())]})
        for line in read_lines(path)
    ]


def listed(episodes: Sequence[Episode]) -> str:
    """A line an episode."""
    lines = [f"{'step':>6} {'reward':>7} {'tokens':>7} {'versions':>9} {'turns':>5}  uid"]
    for one in episodes:
        sampled = {version for version in one.versions if version != NOT_SAMPLED}
        versions = f"{min(sampled)}-{max(sampled)}" if len(sampled) > 1 else "".join(map(str, sampled))
        figures = f"{one.step:>6} {one.reward:>7.3g} {len(one.response_ids):>7} {versions:>9} {one.turns:>5}"
        lines.append(f"{figures}  {one.uid}")
    return "\n".join(lines)


def as_text(episode: Episode, decoder: Decoder) -> str:
    """For a terminal: each span with its origin before it."""
    parts = [_head(episode)]
    if episode.timed:
        parts += ["--- time line, from its first request", *time_line(episode)]
    parts += ["--- prompt", decoder.decode(episode.prompt_ids)]
    for span in episode.spans:
        parts += [f"--- {span.words}", decoder.decode(span.ids)]
    return "\n".join([*parts, f"--- reward {episode.reward:.4g}"])


def time_line(episode: Episode) -> Iterator[str]:
    """A line for each request of its turns, and for each wait between them."""
    turns = sorted((list(turn) for turn in episode.timed), key=lambda turn: turn[0].asked_s)
    begun_s = over_s = turns[0][0].asked_s if turns else 0.0

    def line(at_s: float, what: str) -> str:
        return f"{at_s - begun_s:9.2f} s  {what}"

    for number, turn in enumerate(turns, 1):
        if (own_s := turn[0].asked_s - over_s) > 0:  # else it was asked for beside another one
            yield line(over_s, f"between turns: calls, code of its own, or a stop, for {own_s:.2f} s")
        for before, one in zip([None, *turn], turn, strict=False):
            if before is not None:
                wait_s = one.asked_s - before.over_s
                yield line(before.over_s, f"turn {number} waits, over a stop or a lost engine, for {wait_s:.2f} s")
            engine = f"in {one.server} for {one.over_s - one.sent_s:.2f} s: {_tokens(one.tokens)}"
            what = engine if one.server else "the round stops, or its engine is lost"
            yield line(one.asked_s, f"turn {number} in line for {one.sent_s - one.asked_s:.2f} s, then {what}")
        over_s = max(over_s, turn[-1].over_s)


def as_html(episode: Episode, decoder: Decoder, style: str) -> str:
    """A page: its tokens as a bar, then its text, both coloured by the policy version.

    Args:
        style: of the reports' pages, with their colours.
    """
    colours = {version: index % 8 for index, version in enumerate(sorted(_versions(episode)))}
    bar, text, legend = [], [], []
    for span in episode.spans:
        title, shown = escape(span.words), escape(decoder.decode(span.ids))
        kind = "context" if span.version is None else f"part-{colours[span.version]}"
        bar.append(
            f'<span class="part {kind}" style="flex-grow:{len(span.ids)}" title="{title}">{len(span.ids)}</span>'
        )
        if span.version is None:
            text.append(f'<span class="context" title="{title}">{shown}</span>')
        else:
            line = f"text-decoration:underline 3px var(--series-{colours[span.version]})"
            text.append(f'<span class="kept" style="{line}" title="{title}">{shown}</span>')
    for version, index in colours.items():
        count = sum(one == version for one in episode.versions)
        legend.append(f'<li><i class="part-{index}"></i>policy version {version}: {_tokens(count)}</li>')
    if outside := sum(one == NOT_SAMPLED for one in episode.versions):
        legend.append(f'<li class="context">from outside, not trained: {_tokens(outside)}</li>')
    times = escape("\n".join(time_line(episode)))
    times = f"<h3>Time line, from its first request</h3><pre>{times}</pre>" if times else ""
    body = (
        f"<header><h1>Episode {escape(episode.uid)}</h1><p class='headline'>{escape(_head(episode))}</p></header><main>"
        f'<div class="flow" role="img" aria-label="tokens by origin">{"".join(bar)}</div>'
        f'<ul class="legend">{"".join(legend)}</ul>'
        f"{times}<h3>Prompt</h3><pre>{escape(decoder.decode(episode.prompt_ids))}</pre>"
        f"<h3>Response</h3><pre>{''.join(text)}</pre></main>"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(episode.uid)}</title>\n<style>{style}{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def _tokens(count: int) -> str:
    return f"{count} token{'s' * (count != 1)}"


def _versions(episode: Episode) -> set[int]:
    return {version for version in episode.versions if version != NOT_SAMPLED}


def _head(episode: Episode) -> str:
    carried = f"; carried over {episode.age} round{'s' * (episode.age > 1)}" if episode.age else ""
    turns = f"{episode.turns} turn{'s' * (episode.turns > 1)}"
    tokens = f"{len(episode.prompt_ids)} + {len(episode.response_ids)} tokens"
    return f"trained in step {episode.step}; reward {episode.reward:.4g}; {turns}; {tokens}{carried}"
