"""The report says whether a run has learned: curves, answers, what was run, and its speed beside runs of one job."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.record import keys
from recipe.async_dapo_lab.report import __main__ as report
from recipe.async_dapo_lab.report.answers import PROMPTS, Sample, as_html, sampled
from recipe.async_dapo_lab.report.headline import headline
from recipe.async_dapo_lab.report.learning import CURVES, curves
from recipe.async_dapo_lab.report.run import Run
from recipe.async_dapo_lab.report.write import write_report
from recipe.async_dapo_lab.run_files import ANSWERS_FILE
from recipe.async_dapo_lab.run_record import RunDescription

from ..support.recorded_runs import ACCURACY, RecordedRun, write_recipe_run, write_verl_run

OTHER = "val-core/code/acc/mean@1"


def captions(html: str) -> list[str]:
    return re.findall(r"<figcaption>(.*?)</figcaption>", html)


@pytest.mark.slow
def test_a_run_has_a_curve_of_everything_that_it_has_logged_more_than_once(tmp_path):
    run = Run.load(write_recipe_run(tmp_path / "run"))
    assert captions(curves([run], "a")) == list(CURVES)
    assert captions(curves([Run.load(write_recipe_run(tmp_path / "short", steps=1))], "a")) == []
    for values in run.by_step.values():
        values.pop("actor/entropy", None)
    assert captions(curves([run], "a")) == [title for title in CURVES if "Entropy" not in title]


@pytest.mark.slow
def test_several_data_sources_have_a_line_each_and_so_have_several_runs(tmp_path):
    run = Run.load(write_recipe_run(tmp_path / "run"))
    assert "math/acc" not in curves([run], "a"), "one line needs no name"
    for values in run.by_step.values():
        if ACCURACY in values:
            values[OTHER] = 0.3
    own = curves([run], "a")
    assert "math/acc/mean@1" in own and "code/acc/mean@1" in own
    other = Run.load(write_verl_run(tmp_path / "verl_sync"))
    both = curves([run, other], "a")
    assert ">verl_sync<" in both and "code/acc" not in both
    assert "k3 of the trained tokens" in both, "one of them has it"
    namesake = Run.load(write_verl_run(tmp_path / "seed_1" / "run"))
    both = curves([run, namesake], "a")
    assert f">{run.folder}<" in both and f">{namesake.folder}<" in both


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=3)), unique_by=lambda pair: pair[0]), st.randoms())
def test_the_same_prompts_are_kept_in_whatever_order_their_answers_come(pairs, rng):
    def kept() -> set[str]:
        return {one["prompt"] for one in sampled([p for p, _ in pairs], [a for _, a in pairs], [1.0] * len(pairs))}

    before = kept()
    rng.shuffle(pairs)
    assert kept() == before and len(before) == min(PROMPTS, len(pairs))


def test_answers_are_shown_of_the_first_a_middle_and_the_last_validation_with_nothing_of_theirs_as_markup():
    samples = [Sample(step, prompt, f"<b>{step}", 0.5) for prompt in ("p & q", "r") for step in range(0, 50, 10)]
    html = as_html(samples)
    assert re.findall(r"<b>step (\d+), score 0.5</b>", html) == ["0", "20", "40"] * 2
    assert "p &amp; q" in html and "&lt;b&gt;40" in html and "<b>40" not in html
    assert as_html([]) == ""


@pytest.mark.slow
def test_the_page_has_the_answers_and_what_was_run_with_a_command_that_can_be_given_again(tmp_path):
    folder = write_recipe_run(tmp_path / "run")
    launch = {"overrides": ["data.train_files='a b.parquet'", "trainer.nnodes=1"], "folder": "/home/me"}
    description = RunDescription(
        name="run", system="partial", started_s=0.0, launch=launch, versions={"verl": "0.9.1"}, machine="8 x H100"
    )
    (folder / "run.json").write_text(json.dumps({name: getattr(description, name) for name in description.__slots__}))
    (folder / ANSWERS_FILE).write_text(json.dumps({"step": 4, "prompt": "2+2", "answer": "4", "score": 1.0}) + "\n")
    text = write_report([folder]).read_text()
    assert "<b>step 4, score 1</b><pre>4</pre>" in text and "1970-01-01 00:00 UTC" in text
    assert "verl 0.9.1" in text and "8 x H100" in text
    assert "&#x27;data.train_files=&#x27;&quot;&#x27;&quot;&#x27;a b.parquet" in text and "/home/me" in text


def test_steps_of_other_jobs_are_not_called_faster(tmp_path):
    ours = Run.load(write_recipe_run(tmp_path / "ours"))
    verls = Run.load(write_verl_run(tmp_path / "verls"))
    assert " times as fast as those of verls" in headline(ours, verls)
    for values in verls.by_step.values():
        values["perf/total_num_tokens"] = 3_000.0
    assert "not compared with verls: a step has 3,000 tokens there, and 1,000,000 here" in headline(ours, verls)
    for values in verls.by_step.values():
        values.pop("perf/total_num_tokens", None)
    assert "not compared with verls: one of them does not say how many tokens" in headline(ours, verls)
    slower = Run.load(write_recipe_run(tmp_path / "slower"))
    for values in slower.by_step.values():
        values[keys.STEP_S] = values.get(keys.STEP_S, 0.0) * 2
    assert "; its steps take 2.0" in headline(slower, ours)
    slower.description.settings["rollout.n"] = 8
    assert "not compared with slower: rollout.n is 8 there" in headline(ours, slower)


def test_the_file_of_verls_logger_is_taken_as_it_is(tmp_path, capsys):
    file = write_verl_run(tmp_path / "run") / "metrics.jsonl"
    named = file.rename(tmp_path / "experiment.jsonl")
    report.main([str(named)])
    assert capsys.readouterr().out.strip() == str(tmp_path / "experiment.html")
    assert "<b>experiment</b>" in (tmp_path / "experiment.html").read_text()
    named.write_text('{"model": "no metrics"}\n')
    with pytest.raises(SystemExit, match="is not what a run writes"):
        report.main([str(named)])


@pytest.mark.slow
def test_a_page_that_is_watched_is_written_again_with_what_came_and_renewed_by_the_browser(tmp_path, monkeypatch):
    folder = write_recipe_run(tmp_path / "run", steps=4)
    seen = []

    def sleep(seconds: float) -> None:
        seen.append((seconds, (folder / "report.html").read_text()))
        if len(seen) == 2:
            raise KeyboardInterrupt
        RecordedRun(folder).log({ACCURACY: 0.918273}, 0)

    monkeypatch.setattr(report.time, "sleep", sleep)
    report.main([str(folder), "--watch", "5"])
    assert [seconds for seconds, _ in seen] == [5, 5]
    assert all('http-equiv="refresh" content="5"' in text for _, text in seen) and "0.918273" not in seen[0][1]
    assert seen[0][1] != seen[1][1] and "refresh" not in Path(folder, "report.html").read_text()
