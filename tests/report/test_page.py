"""The report: one valid HTML file with every figure, in words first, and nothing from elsewhere."""

import logging
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from recipe.async_dapo_lab.report.__main__ import main
from recipe.async_dapo_lab.report.charts import with_gaps
from recipe.async_dapo_lab.report.headline import headline
from recipe.async_dapo_lab.report.run import Run
from recipe.async_dapo_lab.report.samples import LoadSample
from recipe.async_dapo_lab.report.timeline import Span, StepTimeline
from recipe.async_dapo_lab.report.write import longest_s, report_the_end, since_newest_start, write_report

from ..support.recorded_runs import write_recipe_run, write_verl_run

VOID = {"meta", "link"}


class Outline(HTMLParser):
    """Checks that tags nest and ids are unique; collects what is referred to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert value is not None
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href"):
                self.links.append(value)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return write_recipe_run(folder / "partial", failed=2), write_verl_run(folder / "verl_sync")


@pytest.fixture(scope="module")
def text(both: tuple[Path, Path]) -> str:
    return write_report(both).read_text()


@pytest.mark.slow
def test_the_page_is_well_formed_and_loads_nothing(text: str) -> None:
    outline = Outline(text)
    assert outline.open == [] and len(outline.ids) == len(set(outline.ids))
    assert "script" not in outline.tags and "img" not in outline.tags
    assert all(link.startswith(("#", "data:")) for link in outline.links)
    assert not re.findall(r"@import|url\((?!#)", text)
    targets = {link[1:] for link in outline.links if link.startswith("#")} | set(re.findall(r"url\(#([^)]+)\)", text))
    assert targets and targets <= set(outline.ids)


def test_the_headline_says_it_in_words_and_measures_against_verl(both: tuple[Path, Path]) -> None:
    ours, verls = map(Run.load, both)
    said = headline(ours, verls)
    assert re.match(
        r"step (39|40|41)\.?\d* s \(median of 11\); 14 % of the engines' places for requests empty; nothing thrown",
        said,
    )
    assert "11 % of tokens from older policies (mean staleness 0.12)" in said
    assert "24 groups failed; accuracy 0.20 to 0.50 (math/acc/mean@1); its steps are 1.5" in said
    assert said.endswith(" times as fast as those of verl_sync")
    assert headline(verls) == "step 60 s (median of 11); accuracy 0.20 to 0.50 (math/acc/mean@1)"


@pytest.mark.slow
def test_the_ledger_adds_up_and_failures_are_told_with_their_cause(both: tuple[Path, Path], text: str) -> None:
    assert "Where 1200 prompt groups went" in text
    assert "768 + 360 + 24 + 0 + 0 + 48 = 1200</p>" in text
    assert "KeyError(&#x27;acc&#x27;) at &lt;reward&gt;.py:12</th><td>26</td>" in text
    assert "async_dapo/failure/groups is 2 (healthy: 0)" in text


@pytest.mark.slow
def test_each_tool_has_a_row_whatever_it_is_called(text: str) -> None:
    assert "<th>name</th><th>calls</th><th>failed</th><th>median [s]</th><th>longest [s]</th>" in text
    rows = (
        ("search", "26", "0", "1.95", "8"),
        ("&#x27;&lt;b&gt;shell&lt;/b&gt;\\n\\ud800&#x27;", "13", "13 (100 %)", "", ""),
    )
    for name, *cells in rows:
        assert f"<tr><th>{name}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" in text


@pytest.mark.slow
def test_engines_that_did_not_step_have_a_gap_and_what_waited_for_calls_has_a_line(text: str) -> None:
    assert "responses that wait for calls of tools" in text
    points = [(0.0, 5.0), (0.1, 4.0), (0.2, 3.0), (9.0, 2.0), (9.1, 1.0)]
    xs, ys = with_gaps(points, longest_s(points))
    assert xs[3] == pytest.approx(4.6) and math.isnan(ys[3]) and [*ys[:3], *ys[4:]] == [5.0, 4.0, 3.0, 2.0, 1.0]
    points = [(0.0, 1.0), (4.0, 2.0), (8.0, 3.0)]
    assert with_gaps(points, longest_s(points)) == ([0.0, 4.0, 8.0], [1.0, 2.0, 3.0]), "each step took 4 s"
    assert with_gaps([], longest_s([])) == ([], [])


def test_engines_are_shown_since_the_run_was_resumed() -> None:
    def step(began_s: float) -> StepTimeline:
        return StepTimeline(
            spans=[Span("rollout", began_s, began_s + 10)], engines={"a": [LoadSample(began_s, 1, 0, 0)]}
        )

    steps = [step(began_s) for began_s in (0, 10, 19, 50_000, 50_012, 50_030)]
    assert since_newest_start(steps) == steps[3:] and since_newest_start(steps[:3]) == steps[:3]
    assert since_newest_start(steps[:4]) == steps[3:4] and since_newest_start([]) == []


@pytest.mark.slow
def test_each_source_of_a_mix_has_a_row_with_its_shares(text: str) -> None:
    columns = ("source", "share drawn", "share trained", "drawn", "trained", "pass rate")
    assert "".join(f"<th>{name}</th>" for name in columns) in text
    for row in (("a/math", "70.0%", "50.0%", "840", "384", ""), ("code", "30.0%", "50.0%", "360", "384", "0.25")):
        assert f"<tr><th>{row[0]}</th>{''.join(f'<td>{cell}</td>' for cell in row[1:])}</tr>" in text


def test_hours_are_those_of_steps_and_validations_so_that_a_recorded_run_compares_with_verls_file(both):
    ours, verls = (Run.load(run).hours() * 3600 for run in both)
    assert ours == pytest.approx(sum(40 + math.sin(step) for step in range(1, 13)))
    assert verls == pytest.approx(12 * 60 + 3 * 5)


@pytest.mark.slow
def test_a_long_run_makes_no_long_page(tmp_path: Path) -> None:
    short = write_report([write_recipe_run(tmp_path / "short", steps=60)]).stat().st_size
    long = write_report([write_recipe_run(tmp_path / "long", steps=1000)]).stat().st_size
    assert long < 3 * short < 3_000_000


def test_a_folder_without_a_record_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no steps.jsonl .* and no metrics.jsonl"):
        main([str(tmp_path)])


@pytest.mark.slow
def test_a_report_that_cannot_be_written_ends_no_run(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("recipe.async_dapo_lab"), "propagate", True)  # whatever ran before
    folder = write_recipe_run(tmp_path / "run", steps=1)
    assert report_the_end(folder) == folder / "report.html"
    (folder / "steps.jsonl").write_text("{broken\n")
    with caplog.at_level(logging.WARNING, "recipe.async_dapo_lab"):
        assert report_the_end(folder) is None
    assert "no report was written" in caplog.text
