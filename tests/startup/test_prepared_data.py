"""Own questions and answers become data that start-up takes; every row that is left out is counted with its reason."""

import json
from itertools import chain
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.startup.preflight import checks_of
from recipe.async_dapo_lab.data import ANSWERS, QUESTIONS, Columns, column_of, convert, main, read_rows, split

from ..support.composed_runs import compose_run, write_model
from ..support.texts import any_text

TWO = Columns(question="problem", answer="gold", source="mine")


def write_parquet_of(folder: Path, rows: list[dict]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "mine.parquet")
    return folder / "mine.parquet"


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_given_two_columns_when_prepared_then_start_up_takes_the_data_and_says_what_was_done(tmp_path, capsys, kind):
    rows = [{"problem": f"What is {index} + 1?", "gold": index + 1} for index in range(100)]
    rows += [{"problem": "", "gold": 1}, {"problem": "Why?", "gold": None}, rows[3]]
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if kind == "parquet":
        file = write_parquet_of(tmp_path, rows)
    main([str(file), "--output", str(tmp_path / "data"), "--system", "Count.", "--source", "openai/gsm8k"])
    said = capsys.readouterr().out
    assert "103 rows: 95 to train on, 5 held out; left out: 1 (its question is empty" in said
    assert "1 (its answer is empty: row 101), 1 (its question comes again: row 102); " in said
    assert "problem -> prompt" in said
    data = [f"data.{name}_files={tmp_path}/data/{name}.parquet" for name in ("train", "val")]
    batch = "data.train_batch_size=8"
    config = compose_run([*data, batch, f"actor_rollout_ref.model.path={write_model(tmp_path / 'model')}"])
    if "checks" in declared():  # which may be missing in a copy
        assert checks_of(config, AsyncDAPOConfig.from_hydra(config))["data"]() == "sources openai/gsm8k"
    [first, *_] = read_rows(tmp_path / "data" / "train.parquet")
    assert first["prompt"][0] == {"content": "Count.", "role": "system"} and first["reward_model"]["style"] == "rule"


@given(
    rows=st.lists(st.fixed_dictionaries({"problem": any_text(max_size=3), "gold": st.none() | st.integers(0, 3)})),
    held_out=st.none() | st.integers(0, 9),
)
def test_every_row_is_trained_on_held_out_or_counted_and_no_question_is_in_both(rows, held_out):
    made, left_out = convert(rows, TWO)
    assert len(made) + sum(map(len, left_out.values())) == len(rows)
    if held_out is not None and held_out >= len(made):
        with pytest.raises(ConfigError, match="--held-out="):
            split(made, held_out, seed=0)
    elif made:
        train, val = split(made, held_out, seed=0)
        assert len(train) + len(val) == len(made) and train
        questions = [{row["prompt"][0]["content"] for row in part} for part in (train, val)]
        assert not questions[0] & questions[1]


def test_an_answer_behind_a_mark_loses_its_working_and_its_commas():
    columns = Columns(question="q", answer="a", source="gsm8k", after="####")
    [made], left_out = convert([{"q": "?", "a": "6*9=54\n#### 1,054"}, {"q": "??", "a": "54"}], columns)
    assert made["reward_model"]["ground_truth"] == "1054" and left_out == {"its answer has no ####": [1]}
    texts = ["#### 1,234,567", "#### (1,2)", "#### x, y"]
    rows, _ = convert([{"q": text, "a": text} for text in texts], columns)
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["1234567", "(1,2)", "x, y"]


def test_a_number_that_is_none_is_no_answer_and_rows_held_out_before_are_not_left_beside_the_training_rows(tmp_path):
    _, left_out = convert([{"problem": "?", "gold": float("nan")}], TWO)
    assert left_out == {"its answer is empty": [0]}
    file = write_parquet_of(tmp_path, [{"problem": f"{index}?", "gold": index} for index in range(4)])
    for held_out in (2, 0):
        main([str(file), "--output", str(tmp_path / "data"), "--held-out", str(held_out)])
        assert (tmp_path / "data" / "val.parquet").exists() == bool(held_out)


def test_messages_keep_their_turns_and_get_one_system_prompt():
    said = [{"role": "system", "content": "old"}, {"role": "user", "content": "hi"}]
    [made], _ = convert(
        [{"problem": said, "gold": "x"}], Columns(question="problem", answer="gold", source="", system="new")
    )
    assert [one["content"] for one in made["prompt"]] == ["new", "hi"]


def test_pictures_get_their_placeholder_and_one_that_is_not_there_is_counted(tmp_path):
    (tmp_path / "a.png").write_bytes(b"png")
    columns = Columns(question="q", answer="a", images="i", source="eyes")
    rows = [
        {"q": "What is it?", "a": "cat", "i": str(tmp_path / "a.png")},
        {"q": "<image>And it?", "a": "dog", "i": [{"bytes": b"png", "path": None}]},
        {"q": "And this?", "a": "cow", "i": "gone.png"},
        {"q": "<image>Both?", "a": "pig", "i": [{"bytes": b"1"}, {"bytes": b"2"}]},
    ]
    made, left_out = convert(rows, columns)
    assert [row["prompt"][0]["content"] for row in made] == ["<image>What is it?", "<image>And it?"]
    assert made[0]["images"] == [{"image": str(tmp_path / "a.png")}] and made[1]["images"] == [{"bytes": b"png"}]
    assert sorted(chain(*left_out.values())) == [2, 3]


@pytest.mark.parametrize(
    ("option", "named", "usual", "said"),
    [
        (
            "--question",
            None,
            QUESTIONS,
            "--question=None: problem and prompt may be meant; name one of problem",
        ),
        ("--answer", None, ANSWERS, "--answer=None: none of the usual names is there; name one of"),
        ("--answer", "golden", ANSWERS, "--answer=golden: no such column; there are problem, prompt, truth"),
    ],
)
def test_columns_that_are_not_sure_are_asked_for_by_the_names_that_there_are(option, named, usual, said):
    with pytest.raises(ConfigError) as refused:
        column_of([{"problem": "1", "prompt": "2", "truth": 3}], option, named, usual)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("no.jsonl", None, "no such file"),
        ("a.csv", "a,b", "must be .parquet or .jsonl"),
        ("a.jsonl", "[1, 2]", "one object a line"),
        ("a.jsonl", "{", "cannot be read: .*one object a line"),
        ("a.parquet", "text", "cannot be read"),
        ("a.jsonl", "", "must have rows"),
    ],
)
def test_files_that_cannot_be_used_are_refused_with_what_is_wrong(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(SystemExit, match=f"async_dapo: FILE=.*{said}"):
        main([str(tmp_path / name), "--output", str(tmp_path / "data")])
    assert not (tmp_path / "data").exists()
