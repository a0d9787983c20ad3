"""Sampled responses: short texts, whole accounts, and nothing of them is markup."""

from pathlib import Path

from recipe.async_dapo_lab.report.responses import MOST_CHARS, as_html, pieces_of, read_responses, shortened
from recipe.async_dapo_lab.report.write import write_report
from recipe.async_dapo_lab.run_files import RESPONSES_FILE

from ..support.recorded_runs import ScriptedSource, write_recipe_run

ABOUT = "reward 1, 10 tokens: version 3 (5), not sampled (2), version 4 (3); carried over 1 round"


def test_a_response_says_its_reward_and_which_version_wrote_which_part() -> None:
    [response] = ScriptedSource().responses
    assert response.about == ABOUT


def test_the_report_shows_the_first_the_middle_and_the_last_step_with_markup_escaped(tmp_path: Path) -> None:
    folder = write_recipe_run(tmp_path / "run", steps=9)
    recorded = read_responses(folder / RESPONSES_FILE)
    assert list(recorded) == list(range(1, 10)) and recorded[9] == ScriptedSource().responses
    page = write_report([folder]).read_text()
    assert [step for step in range(12) if f"<summary>step {step}</summary>" in page] == [1, 5, 9]
    assert "<pre>&lt;b&gt;12 + 30</pre>" in page
    assert as_html({}) == "" and as_html({1: []}) == ""


def test_a_long_response_keeps_its_beginning_and_its_end() -> None:
    text = shortened("a" * 5000 + "b" * 5000)
    assert text.startswith("aaa") and text.endswith("bbb") and "[... 8,000 characters ...]" in text
    assert shortened("short") == "short"
    pieces = pieces_of([(version, 1000, "x" * 4000) for version in range(4)])
    assert sum(len(piece.text) for piece in pieces) < 1.2 * MOST_CHARS and sum(p.tokens for p in pieces) == 4000
