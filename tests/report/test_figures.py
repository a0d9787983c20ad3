"""What an evaluation counts: mean@k, pass@k and lengths, of answers that verl's dump holds and of those that failed."""

import json
import os
from contextlib import nullcontext
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.record.checkpoint_folder import saving
from recipe.async_dapo_lab.evaluate import __main__ as evaluate
from recipe.async_dapo_lab.evaluate.figures import best_of, by_source, figures, joined, read_dump, shortened, table
from recipe.async_dapo_lab.evaluate.subject import Subject
from recipe.async_dapo_lab.saved_run import SavedRun

VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=7)


@given(VALUES, st.data())
def test_the_best_of_k_is_the_mean_over_all_choices_of_k(values, data):
    k = data.draw(st.integers(1, len(values)))
    assert best_of(values, k) == pytest.approx(fmean(max(chosen) for chosen in combinations(values, k)))


def line(uid: str, trajectory: int, *, place: int = 0, **fields: object) -> dict:
    text = {"input": f"{uid}?", "output": "said", "gts": "true", "score": 0.0, "acc": 0.0}
    return text | {"uid": f"{uid}_{trajectory}_{place}"} | fields


def test_answers_are_those_of_the_last_outputs_with_sources_and_lengths_and_what_failed_is_wrong():
    dump = [
        line("a_1", 0, acc=1.0, score=0.5),
        line("a_1", 1, place=0, output="thinks"),
        line("a_1", 1, place=1, output="answers", acc=1.0, score=1.0),
        line("b", 1, acc="right", score=1.0),
    ]
    kept = {
        "sources": {"a_1": "math", "b": "code", "lost": "code", "alone": "logic"},
        "lengths_tok": {"a_1": [3, 5], "b": [9, 7], "lost": [1, 1]},
    }
    answers = joined(dump, kept["sources"], kept["lengths_tok"])
    assert [(one.uid, one.text, one.value, one.length_tok) for one in answers] == [
        ("a_1", "said", 1.0, 3),
        ("a_1", "answers", 1.0, 5),
        ("b", "said", 1.0, 7),
    ]
    found = figures(answers, samples=2, prompts=3, longest_tok=7)
    assert (found["prompts"], found["failed"]) == (3, 3)
    assert found["mean@2"] == pytest.approx((1 + 0.5 + 0) / 3) and found["pass@2"] == pytest.approx(2 / 3)
    assert found["length_tok"] == {"mean": 5, "median": 5, "p99": 7, "max": 7}
    assert found["cut_share"] == pytest.approx(1 / 3)
    own = by_source(answers, kept["sources"], samples=2)
    assert own["math"]["mean@2"] == 1 and own["code"]["mean@2"] == pytest.approx(0.25)
    assert own["logic"] == {"prompts": 1, "samples": 2, "failed": 2, "mean@2": 0, "pass@2": 0}
    of_sources = [fields["prompts"] * fields["mean@2"] for fields in own.values()]
    everything = figures(answers, samples=2, prompts=len(kept["sources"]))
    assert sum(of_sources) / len(kept["sources"]) == pytest.approx(everything["mean@2"])


def test_an_answer_with_a_line_separator_is_one_answer(tmp_path):
    rows = [line("a", 0, output="one\u2028two\x85three\nfour"), line("b", 0)]
    (tmp_path / "8.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    assert read_dump(tmp_path / "8.jsonl") == rows


@pytest.mark.parametrize(("samples", "ks"), [(1, []), (2, [2]), (6, [2, 4, 6]), (8, [2, 4, 8])])
def test_pass_at_k_is_given_for_doubled_k_and_for_all_answers(samples, ks):
    answers = joined([line("a", one, acc=1.0) for one in range(samples)], {}, {})
    found = figures(answers, samples=samples)
    assert [key for key in found if key.startswith("pass@")] == [f"pass@{k}" for k in ks]
    assert "length_tok" not in found


def test_the_table_shows_right_and_wrong_answers_in_turn_each_on_a_line():
    dump = [line(uid, 0, acc=float(uid < "d"), score=float(uid < "d"), output="a\nb") for uid in "abcdef"]
    rows = table(joined(dump, {}, {}), rows=4).splitlines()
    assert [row.split()[0] for row in rows[1:]] == ["1", "0", "1", "0"] and rows[1].endswith("a b")
    assert shortened("x" * 50 + "y" * 50, 20) == "x" * 7 + " ... " + "y" * 7


def subject(name: str, *overrides: str) -> Subject:
    return Subject.named(name, step=None, overrides=overrides)


def test_a_run_is_evaluated_with_its_own_options_its_newest_checkpoint_and_folders_apart_from_its_own(tmp_path):
    run = tmp_path / "run"
    with saving(run / "checkpoints" / "global_step_4", [b"pool"]):
        (run / "checkpoints" / "global_step_4" / "actor").mkdir(parents=True)
    launch = {"overrides": ["async_dapo.recorder=a.B", "hydra.run.dir=x", "data.seed=1"], "folder": str(tmp_path)}
    description = {"name": "run", "system": "partial", "started_s": 0.0, "launch": launch}
    (run / "run.json").write_text(json.dumps(description))
    found = subject(str(run), "data.seed=2")
    overrides = found.evaluation(tmp_path / "apart", data=[tmp_path / "a.parquet"], samples=4)
    assert overrides[:2] == ["data.seed=1", "data.seed=2"] and found.saved.started_in == tmp_path
    assert f"trainer.resume_from_path='{run}/checkpoints/global_step_4'" in overrides
    assert {"trainer.val_only=True", "actor_rollout_ref.rollout.val_kwargs.n=4"} <= set(overrides)
    alone = subject(str(run / "checkpoints" / "global_step_4"))
    assert alone.overrides == ["data.seed=1"] and alone.checkpoint == found.checkpoint and alone.saved.record == run
    written = [one for one in overrides if str(run) in one and "resume_from_path" not in one]
    assert not written, "nothing is written into the run's folder"


def test_a_run_is_evaluated_where_it_was_started_by_this_recipe_and_not_by_one_that_lies_there(tmp_path, monkeypatch):
    """Reference scripts are started in folders of the user's, which Python would look at first."""
    started: list[tuple[list[str], str, Path]] = []

    class Ended(nullcontext[None]):
        exit_code = 0

        def __init__(self, command: list[str], *, environment: dict[str, str], log_file: Path, folder: Path) -> None:
            super().__init__()
            log_file.touch()
            started.append((command, environment["PYTHONPATH"], folder))

    monkeypatch.setattr(evaluate, "TrainingProcess", Ended)
    monkeypatch.setenv("PYTHONPATH", "/given")
    launch = {"overrides": ["data.seed=1"], "folder": str(tmp_path)}
    description = {"name": "run", "system": "partial", "started_s": 0.0, "launch": launch}
    (tmp_path / "run.json").write_text(json.dumps(description))
    with saving(tmp_path / "global_step_4", [b"pool"]):
        (tmp_path / "global_step_4" / "actor").mkdir(parents=True)
    evaluate._run([], subject(str(tmp_path)), folder=tmp_path, ray_folder=tmp_path)
    [(command, path, folder)] = started
    assert command[1:3] == ["-P", "-m"] and folder == tmp_path
    assert path.split(os.pathsep) == [str(evaluate._CODE_PATH), "/given", str(tmp_path)]


def test_a_model_is_evaluated_by_its_path_and_one_that_says_nothing_of_its_training_by_the_options_that_are_given(
    tmp_path,
):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"no run.json in it names the options .* after --"):
        subject(str(tmp_path))
    weights = list(subject(str(tmp_path), "data.seed=2").weights)
    assert f"actor_rollout_ref.model.path='{tmp_path}'" in weights and "trainer.resume_mode=disable" in weights
    assert "actor_rollout_ref.model.path='Qwen/Qwen3-0.6B'" in subject("Qwen/Qwen3-0.6B", "data.seed=2").weights
    for name, step, said in (("no/such/run", None, "no such folder"), (str(tmp_path), 3, "has no steps")):
        with pytest.raises(ConfigError, match=said):
            Subject.named(name, step=step, overrides=["data.seed=2"])
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="is an adapter alone"):
        subject(str(tmp_path), "data.seed=2")


@pytest.mark.parametrize(
    ("name", "description", "said"),
    [
        ("gone", None, "no such folder"),
        ("run", '{"name": "run", "syst', r"run.json is not what a run writes"),
        ("run", '{"other": 1}', r"run.json is not what a run writes"),
        ("run/global_step_latest", None, "is not named global_step_<number>"),
        ("run", None, r"steps found: none"),
    ],
)
def test_a_folder_that_is_no_run_is_refused_by_name(tmp_path, name, description, said):
    (tmp_path / "run" / "global_step_latest").mkdir(parents=True)
    if description is not None:
        (tmp_path / "run" / "run.json").write_text(description)
    with pytest.raises(ConfigError, match=said):
        SavedRun.at(tmp_path / name).checkpoint()
