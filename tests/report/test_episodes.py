"""A trained trajectory can be looked at: each token with its origin, as text and as a page."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.trajectory import Timed
from recipe.async_dapo_lab import episode as command
from recipe.async_dapo_lab.quickstart.tiny_model import build_tokenizer
from recipe.async_dapo_lab.report.episodes import NOT_SAMPLED, Episode, as_html, as_text, read_episodes
from recipe.async_dapo_lab.report.page import STYLE
from recipe.async_dapo_lab.run_files import EPISODES_FILE

ORIGINS = st.sampled_from([NOT_SAMPLED, 3, 4])


class Letters:
    """Token k is the k-th letter."""

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(ord("a") + one) for one in ids)


TIMED = [  # the second turn over a stop, the third beside it
    [Timed("a", 100.0, 100.5, 102.0, 2)],
    [Timed("a", 105.0, 105.0, 106.0, 1), Timed("", 106.0, 107.0, 107.0, 0), Timed("b", 110.0, 110.25, 112.0, 7)],
    [Timed("b", 105.5, 105.5, 105.75, 3)],
]


def episode_of(versions: list[int], *, uid: str = "p_0_0", reward: float = 1.0) -> Episode:
    count = len(versions)
    return Episode(
        uid=uid,
        step=5,
        prompt_ids=[0],
        response_ids=[one % 26 for one in range(count)],
        versions=versions,
        log_probs=[-0.25] * count,
        reward=reward,
        age=1,
        timed=TIMED,
    )


@given(st.lists(ORIGINS, min_size=1, max_size=30))
def test_spans_are_the_response_cut_where_the_origin_changes(versions):
    episode = episode_of(versions)
    spans = list(episode.spans)
    assert [one for span in spans for one in span.ids] == list(episode.response_ids)
    origins = [NOT_SAMPLED if span.version is None else span.version for span in spans for _ in span.ids]
    assert origins == versions
    assert all(before.version != after.version for before, after in pairwise(spans))
    assert episode.turns <= sum(span.version is not None for span in spans)


def test_text_and_page_say_which_version_said_what_and_what_came_from_a_tool():
    episode = episode_of([3, 3, 4, NOT_SAMPLED, NOT_SAMPLED, 4])
    text = as_text(episode, Letters())
    assert text.splitlines()[0] == ("trained in step 5; reward 1; 2 turns; 1 + 6 tokens; carried over 1 round")
    for part in (
        "2 tokens of policy version 3, log-prob -0.25",
        "1 token of policy version 4",
        "2 tokens from outside",
    ):
        assert part in text
    assert "\nde\n" in text
    page = as_html(episode, Letters(), STYLE)
    assert re.sub(r"<[^>]+>", "", page.partition("<h3>Response</h3>")[2]).strip() == "abcdef"
    assert "policy version 4: 2 tokens" in page and "not trained: 2 tokens" in page
    times = [
        "     0.00 s  turn 1 in line for 0.50 s, then in a for 1.50 s: 2 tokens",
        "     2.00 s  between turns: calls, code of its own, or a stop, for 3.00 s",
        "     5.00 s  turn 2 in line for 0.00 s, then in a for 1.00 s: 1 token",
        "     6.00 s  turn 2 waits, over a stop or a lost engine, for 0.00 s",
        "     6.00 s  turn 2 in line for 1.00 s, then the round stops, or its engine is lost",
        "     7.00 s  turn 2 waits, over a stop or a lost engine, for 3.00 s",
        "    10.00 s  turn 2 in line for 0.25 s, then in b for 1.75 s: 7 tokens",
        "     5.50 s  turn 3 in line for 0.00 s, then in b for 0.25 s: 3 tokens",
    ]
    assert "\n".join(["--- time line, from its first request", *times, "--- prompt"]) in text
    assert "\n".join(times) in page
    untimed = replace(episode, timed=())
    assert "time line" not in as_text(untimed, Letters()) + as_html(untimed, Letters(), STYLE).lower()


def test_the_command_lists_shows_and_writes_what_a_run_has_kept(tmp_path, capsys):
    run, tokenizer = tmp_path / "run", build_tokenizer()
    tokenizer.save_pretrained(tmp_path / "model")
    run.mkdir()
    kept = [episode_of([3, 4], uid="ab_0_0", reward=0.0), episode_of([4, 4], uid="ab_1_0")]
    (run / EPISODES_FILE).write_text("".join(json.dumps(one.line()) + "\n" for one in kept))
    assert read_episodes(run / EPISODES_FILE) == kept
    command.main([str(run)])
    head, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "uid" and first.split() == ["5", "0", "2", "3-4", "1", "ab_0_0"]
    with pytest.raises(SystemExit, match="no episode's uid begins with zz"):
        command.main([str(run), "zz"])
    with pytest.raises(SystemExit, match="2 episodes begin so"):
        command.main([str(run), "ab", "--output", str(tmp_path / "page.html")])
    with pytest.raises(SystemExit, match="give --tokenizer"):
        command.main([str(run), "ab_1"])
    command.main([str(run), "ab_1", "--tokenizer", str(tmp_path / "model")])
    assert "2 tokens of policy version 4" in capsys.readouterr().out
    command.main([str(run), "ab_1", "--tokenizer", str(tmp_path / "model"), "--output", str(tmp_path / "page.html")])
    assert "<h1>Episode ab_1_0</h1>" in Path(tmp_path / "page.html").read_text()
    with pytest.raises(SystemExit, match=r"has no episodes.jsonl"):
        command.main([str(tmp_path)])
