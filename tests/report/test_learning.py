"""The report says whether a run has learned: curves, answers, what was run, and its speed beside runs of one job."""

import json
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.record import keys
from recipe.async_dapo_lab.report import __main__ as report
from recipe.async_dapo_lab.report.answers import PROMPTS, Sample, as_html, sampled
from recipe.async_dapo_lab.report.charts import with_gaps
from recipe.async_dapo_lab.report.headline import headline
from recipe.async_dapo_lab.report.learning import CURVES, alone, curves, longest_steps, short_names
from recipe.async_dapo_lab.report.run import Run
from recipe.async_dapo_lab.report.write import write_report
from recipe.async_dapo_lab.run_files import ANSWERS_FILE
from recipe.async_dapo_lab.run_record import RunDescription

from ..support.recorded_runs import ACCURACY, RecordedRun, write_recipe_run, write_verl_run
from ..support.texts import any_text

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
    assert ">math<" in own and ">code<" in own
    other = Run.load(write_verl_run(tmp_path / "verl_sync"))
    both = curves([run, other], "a")
    assert ">verl_sync<" in both and "code/acc" not in both
    assert "k3 of the trained tokens" in both, "one of them has it"
    namesake = Run.load(write_verl_run(tmp_path / "seed_1" / "run"))
    both = curves([run, namesake], "a")
    assert both.count("/seed_1<") == 6, "where their folders differ"


@pytest.mark.slow
def test_more_sources_than_colours_are_lines_without_names_and_their_mean(tmp_path):
    run = Run.load(write_recipe_run(tmp_path / "run"))
    for step, values in run.by_step.items():
        for number in range(12):
            values[f"{keys.SOURCE}set/{number}/pass_rate"] = step / 100
            values[f"val-core/set/{number}/acc/mean@1"] = step / 100
    drawn = curves([run], "a")
    assert drawn.count(">mean of 13<") == 2, "with one of the record's own"
    assert "set/3" not in drawn and "Pass rate of each data source" in captions(drawn)


def test_names_in_a_legend_lack_what_all_have_and_are_short():
    assert short_names(["openai/gsm8k/acc/mean@4", "math/acc/mean@4"]) == ["openai/gsm8k", "math"]
    assert short_names(["acc/mean@4", "math/acc/mean@4"]) == ["acc", "math/acc"]
    assert short_names(["/home/a/run", "/home/a/seed_1/run"]) == ["a", "a/seed_1"]
    assert short_names(["a" * 20 + "b" + "c" * 20, "a" * 20 + "d" + "c" * 20])[0] == "a" * 20 + "b" + "c" * 20
    assert short_names(["a" * 40 + "bcd", "c"]) == ["a" * 10 + ".." + "a" * 7 + "bcd", "c"]


@given(st.integers(1, 9), st.sets(st.integers(1, 60), min_size=3))
def test_what_each_step_logs_breaks_off_where_steps_are_missing(every, missing):
    steps = [every * number for number in range(1, 100) if number not in missing]
    points = [(step, 1.0) for step in steps]
    xs, ys = with_gaps(points, longest_steps(points))
    gaps = [x for x, y in zip(xs, ys, strict=True) if math.isnan(y)]
    most = 1 if every == 1 else 2 * every  # a validation at another step is no gap
    assert gaps == [(one + other) / 2 for one, other in pairwise(steps) if other - one > most]
    assert [(x, y) for x, y in zip(xs, ys, strict=True) if not math.isnan(y)] == points
    marked = {xs[place] for place in alone(ys)}
    far = [True, *(other - one > most for one, other in pairwise(steps)), True]
    assert marked == {step for step, (before, after) in zip(steps, pairwise(far), strict=True) if before and after}


@pytest.mark.slow
def test_numbers_that_are_not_finite_are_missing_steps(tmp_path):
    run = Run.load(write_recipe_run(tmp_path / "run"))
    of_whole = headline(run)
    for step, values in run.by_step.items():
        for key in values:
            values[key] = (math.nan, math.inf)[step % 2] if step in (5, 8, 9) and key != keys.STEP_S else values[key]
    assert [step for step, _ in run.series(keys.REWARD)] == [1, 2, 3, 4, 6, 7, 10, 11, 12]
    assert re.sub(r"[\d.]+", "", headline(run)) == re.sub(r"[\d.]+", "", of_whole) and "nan" not in headline(run)
    assert captions(curves([run], "a")) == captions(curves([Run.load(tmp_path / "run")], "a"))


@given(st.lists(st.tuples(any_text(max_size=4), any_text(max_size=3)), unique_by=lambda pair: pair[0]), st.randoms())
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
    assert "<pre>python -m recipe.async_dapo_lab.train" in text
    launch["python_path"] = "/the recipe:/home/me"  # of a reference script
    (folder / "run.json").write_text(json.dumps({name: getattr(description, name) for name in description.__slots__}))
    assert "PYTHONPATH=&#x27;/the recipe:/home/me&#x27; python -P -m recipe." in write_report([folder]).read_text()


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
