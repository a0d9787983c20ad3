"""Bad data, a bad model path and a bad reward function are refused before Ray starts."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.extensions.checks.data import SAMPLE_ROWS, Prompts, check_data
from recipe.async_dapo.startup.model import load_by_verl
from recipe.async_dapo.startup.preflight import check_all, findings

from ....support.composed_runs import refusal, row, rows, write_lines, write_parquet

# Left after the chat template with its generation prompt (8 tokens of the tiny model), one token a character.
LONGEST_PROMPT = 24


def check(config: DictConfig) -> list[dict]:
    return seen_in(config)[0]


def left_out(config: DictConfig) -> str:
    return seen_in(config)[1]


def seen_in(config: DictConfig) -> tuple[list[dict], str]:
    found: dict[str, dict] = {}
    told = check_data(config, AsyncDAPOConfig.from_hydra(config), Prompts(config, load_by_verl(config)), found)
    return list(found.values()), told


IMAGE = [{"role": "user", "content": [{"type": "image"}]}]
UNSEEN = "training sees no videos and no audio; leave them out"


@pytest.mark.parametrize(
    ("changed_row", "change", "message"),
    [
        (None, {"prompt": ...}, "verl's data set fails: KeyError: "),
        *((None, {name: ...}, "has a row with raw_prompt=[{") for name in ("data_source", "reward_model")),
        (None, {"prompt": "1+1="}, ""),
        (None, {"prompt": [{"text": "1+1="}]}, ""),
        (None, {"reward_model": "2"}, "has a row with raw_prompt=[{"),
        (None, {"reward_model": {"answer": "2"}}, "has a row with raw_prompt=[{"),
        (None, {"__rollout_n__": 8}, "has the columns ['__rollout_n__'], which verl or this recipe uses"),
        (None, {"images": [b"png"]}, ""),
        (None, {"audios": [b"wav"], "videos": [b"mp4"]}, ""),
        (None, {"prompt": IMAGE}, ""),
        (1000, {"prompt": []}, ""),
        (1000, {"data_source": None}, "has a row with raw_prompt=[{"),
        (1000, {"reward_model": {"style": "rule", "ground_truth": None}}, "has a row with raw_prompt=[{"),
        (1000, {"agent_name": None}, "has a row with agent_name=None"),
        (999, {"prompt": [None]}, f"has content that is not text: {UNSEEN}"),
        (None, {"data_source": 3}, "has a row with raw_prompt=[{"),
        (None, {"extra_info": "index 3"}, ""),
        (None, {"rm_scores": 1.0, "priority": 3}, "has the columns ['priority', 'rm_scores'], which verl or this"),
    ],
    ids=str,
)
def test_given_a_column_of_another_kind_or_none_when_checked_then_column_or_row_is_named(
    run, tmp_path, changed_row, change, message
):
    """`...` leaves the column out."""
    loop = {"agent_name": "single_turn_agent"} if "agent_name" in change else {}
    count = 16 if changed_row is None else 1400  # the sample has every third row, and the one that lacks something
    content = [row(number) | loop | (change if changed_row in (None, number) else {}) for number in range(count)]
    content = [{name: value for name, value in one.items() if value is not ...} for one in content]
    path = write_parquet(tmp_path / "train.parquet", content)
    assert refusal(run, f"data.train_files={path}").startswith(f"data.train_files={path}: {message}"), refusal(
        run, f"data.train_files={path}"
    )


@pytest.mark.parametrize("selected", [None, ["add"]])
def test_given_rows_with_null_for_a_tool_when_checked_then_tool_and_row_are_named_if_it_is_offered(
    run, tmp_path, selected
):
    """Parquet has one set of tools for all rows, and null where a row leaves one out."""

    def with_tools(number: int) -> dict:
        tools = {"add": {"create_kwargs": {"limit": 1}}}
        if number != 1000:
            tools["search"] = {"create_kwargs": {"limit": 1}}
        extra = {"index": number, "tools_kwargs": tools, "tool_selection": selected}
        return row(number) | {"agent_name": "tool_agent", "extra_info": extra}

    path = write_parquet(tmp_path / "train.parquet", [with_tools(number) for number in range(1400)])
    if selected:
        assert check(run(f"data.train_files={path}"))
        return
    said = f"data.train_files={path}: has null for search in extra_info.tools_kwargs: '1000+1='; give each row a value"
    assert refusal(run, f"data.train_files={path}").startswith(said)


OWN_LOOP = """
class Loop:
    def run(self): ...
"""


@pytest.mark.parametrize("by", ["default_agent_loop", "agent_name"])
@pytest.mark.parametrize(
    ("change", "is_refused"),
    [
        ({"reward_model": ...}, False),
        ({"data_source": ..., "reward_model": ...}, False),
        ({"reward_model": {"style": "rule"}}, False),
        ({"reward_model": None}, True),  # verl asks each value of the column for its keys
        ({"data_source": None}, True),
    ],
    ids=str,
)
def test_given_a_loop_of_the_users_when_data_has_nothing_to_score_by_then_it_is_told_that_it_has_to(
    run, tmp_path, monkeypatch, change, is_refused, by
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "scores_itself.py").write_text(OWN_LOOP)
    (tmp_path / "loops.yaml").write_text("- {name: mine, _target_: scores_itself.Loop}")
    agent = "actor_rollout_ref.rollout.agent"
    change = change if by == "default_agent_loop" else change | {"agent_name": "mine"}
    content = [{key: value for key, value in (row | change).items() if value is not ...} for row in rows(16)]
    if None in change.values():
        content[:-1] = [row | change | {"data_source": "a", "reward_model": {"ground_truth": "1"}} for row in rows(15)]
    data = write_parquet(tmp_path / "data.parquet", content)
    named = [
        f"data.train_files={data}",
        f"data.val_files={data}",
        f"{agent}.agent_loop_config_path={tmp_path}/loops.yaml",
    ]
    own = run(*named, *([f"{agent}.default_agent_loop=mine"] if by == "default_agent_loop" else []))
    if is_refused:
        with pytest.raises(ConfigError, match="has a row with raw_prompt="):
            check_all(own)
        return
    told = {one.name: one.note for one in findings(own)}
    assert "data.train_files: no reward function can score what mine answers" in told["data"]
    with pytest.raises(ConfigError, match="has a row with raw_prompt="):
        check(run(*named) if by == "default_agent_loop" else run(*named[:2]))  # a loop of verl's


def test_given_a_reward_model_when_data_has_no_ground_truth_then_it_is_in_order(run, tmp_path):
    without = {"reward_model": {"style": "model", "ground_truth": None}}
    path = write_parquet(tmp_path / "train.parquet", [row(number) | without for number in range(16)])
    config = run(f"data.train_files={path}", "reward.reward_model.enable=True")
    assert [one["data_source"] for one in check(config)] == ["sums"]


FAILS = "verl's data set fails: "


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "data.train_files=/no/train.parquet",
            f"data.train_files=/no/train.parquet: {FAILS}FileNotFoundError: Unable to find",
        ),
        ("data.val_files=[/no/val.json]", f"data.val_files=['/no/val.json']: {FAILS}FileNotFoundError: Unable to find"),
        ("data.train_files=null", "data.train_files=None: must be text, or a list of texts"),
        ("data.train_files=/etc/passwd", f"data.train_files=/etc/passwd: {FAILS}ValueError: Unsupported file format"),
        ("data.train_max_samples=7", "data.train_files={files}/train.parquet: has 7 prompts, fewer than one batch"),
        ("data.train_max_samples=9", "data.seed=None: verl chooses data.train_max_samples=9 prompts at every start"),
        ("data.val_max_samples=1", "data.seed=None: verl chooses data.val_max_samples=1 prompts at every start"),
    ],
)
def test_what_names_no_data_is_refused(run, files, override, message):
    assert refusal(run, override).startswith(message.format(files=files))
    check_all(run("data.train_max_samples=9", "data.val_max_samples=1", "data.seed=1"))


def with_truth(truth: object) -> list[dict]:
    return [one | {"reward_model": {"ground_truth": truth}} for one in rows(16)]


FEW = "has 7 prompts, fewer than one batch; lower data.train_batch_size=8 or add data"
PLAIN_LOOP = [one | {"agent_name": "single_turn_agent"} for one in rows(16)]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"a.parquet": rows(4), "b.parquet": rows(4)}, None),
        ({"a.parquet": rows(4), "b.parquet": rows(3)}, FEW),
        *(({name: rows(8)}, None) for name in ("a.jsonl", "a.json")),
        *(({name: rows(7)}, FEW) for name in ("a.parquet", "a.jsonl", "a.json")),
        ({"array.json": json.dumps(rows(8))}, None),
        ({"array.json": json.dumps(rows(7))}, FEW),
        ({"a.parquet": ""}, FAILS),
        *(({name: ""}, FAILS) for name in ("a.jsonl", "a.json")),
        *(({name: "PAR1 and no more"}, FAILS) for name in ("a.parquet", "a.jsonl", "a.json")),
        (
            {"text.parquet": with_truth("2"), "number.parquet": with_truth(2)},
            "verl's data set fails: ValueError: The features can't be aligned because the key ground_truth",
        ),
        (
            {"a.parquet": PLAIN_LOOP, "b.parquet": rows(16)},
            "has a row with agent_name=None: '0+1='; name one in every row of every file, or in none",
        ),
    ],
    ids=lambda value: "" if isinstance(value, dict) else str(value)[:20],
)
def test_files_are_read_as_verl_reads_them_and_their_prompts_are_counted_together(run, tmp_path, contents, message):
    for name, content in contents.items():
        if isinstance(content, str):
            (tmp_path / name).write_text(content)
        else:
            (write_parquet if name.endswith(".parquet") else write_lines)(tmp_path / name, content)
    named = f"data.train_files=[{','.join(f'{tmp_path}/{name}' for name in contents)}]"
    if message is None:
        check_all(run(named))
    else:
        assert message in refusal(run, named)


@pytest.mark.parametrize("key", ["train_files", "val_files"])
def test_given_a_file_without_rows_when_checked_then_verl_says_so(run, files, tmp_path, key):
    path = tmp_path / "empty.parquet"
    pq.write_table(pq.read_table(files / "train.parquet").slice(0, 0), path)
    assert refusal(run, f"data.{key}={path}").startswith(f"data.{key}={path}: {FAILS}")


CUSTOM = """
from verl.utils.dataset.rl_dataset import RLHFDataset

class Mine(RLHFDataset):
    def __getitem__(self, item):
        row = super().__getitem__(item)
        {change}
        return row
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "row['raw_prompt'] = [{'role': 'user', 'content': [{'type': 'image'}]}]",
            "has prompts with pictures: a qwen3 cannot be shown pictures"
            if "pictures" in declared()
            else "has ['image']: extensions/pictures is not in this copy; copy that folder too, or take prompts and a",
        ),
        (
            "row['raw_prompt'][0]['content'] = [{'type': 'video'}, {'type': 'audio'}]",
            f"has ['audio', 'video']: {UNSEEN}",
        ),
        ("row['images'] = [b'png']", f"has ['images']: {UNSEEN}"),
        ("row['raw_prompt'][0]['content'] *= 40", "has a prompt of "),
        ("del row['data_source']", "'content': '0+1='}], data_source=None, reward_model={"),
        ("del row['raw_prompt']", "has a row with raw_prompt=None, data_source='sums', reward_model={"),
        ("row['responses'] = 'old'", "has the columns ['responses'], which verl or this recipe uses; rename them"),
        (
            "row['sampling_params'] = {}",
            "has the columns ['sampling_params'], which verl or this recipe uses; rename them",
        ),
        ("1 / 0", "verl's data set fails: ZeroDivisionError: division by zero"),
        ("row['extra_info']['picture'] = object()", "extra_info.picture: is a builtins.object, which no checkpoint"),
    ],
)
def test_given_a_custom_dataset_when_checked_then_its_own_rows_are_looked_at(run, files, tmp_path, change, message):
    def overrides(file: Path, change: str) -> tuple[str, str, str]:
        file.write_text(CUSTOM.format(change=change))
        return (f"data.custom_cls.path={file}", "data.custom_cls.name=Mine", "data.filter_overlong_prompts=False")

    # Of one file, bytecode of the first text would be taken for that of a second one as long, of the same second.
    [found] = check(run(*overrides(tmp_path / "right.py", "row['level'] = 'hard'")))
    assert found["level"] == "hard" and found["raw_prompt"] == row(0)["prompt"]
    assert message in refusal(run, *overrides(tmp_path / "changed.py", change))


def test_given_tools_when_checked_then_their_schemas_are_part_of_every_prompt_that_offers_them(run, tmp_path):
    (tmp_path / "tools.py").write_text(
        "from verl.tools.function_tool import function_tool\n\n"
        "@function_tool\ndef sum_of(a: int, b: int) -> int:\n"
        '    """Add.\n\n    Args:\n        a: one\n        b: other\n    """\n    return a + b\n'
    )

    def offering(*overrides: str) -> DictConfig:
        config = run(f"actor_rollout_ref.rollout.multi_turn.function_tool_path={tmp_path}/tools.py", *overrides)
        template = (
            "{{ tools | length }}{{ tools | tojson }}{% for message in messages %}{{ message.content }}{% endfor %}"
        )
        config.actor_rollout_ref.model.custom_chat_template = "{% if tools %}" + template + "{% endif %}"
        return config

    loop, unfiltered = (
        "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
        "data.filter_overlong_prompts=False",
    )
    assert "verl keeps only 0 of the 16 prompts in data.train_files" in refusal(offering, loop)
    assert "tokens, schemas of 1 tools included; set it to " in refusal(offering, loop)
    message = refusal(offering, loop, unfiltered)
    assert "tokens, schemas of 1 tools included, and verl would cut off its front: '" in message
    check(offering(unfiltered))  # the plain loop offers none


def test_given_prompts_that_verl_leaves_out_when_checked_then_their_number_and_the_reason_are_told(run, tmp_path):
    def told(long: int, short: int) -> str:
        content = [*rows(short), *rows(long, prompt="x" * (LONGEST_PROMPT + 2))] * 8
        return left_out(run(f"data.train_files={write_parquet(tmp_path / 'train.parquet', content)}"))

    why = "prompts in data.train_files are left out: longer than data.max_prompt_length=32, up to 34 tokens"
    assert told(0, 16) == ""
    assert told(4, 12) == f"32 of 128 {why}"
    assert re.fullmatch(rf"about (7|8)\d\d of 3,200 {why}", told(100, 300))


def test_given_a_prompt_over_the_limit_when_checked_then_limit_length_and_prompt_are_named(run, tmp_path):
    def overrides(letters: int) -> tuple[str, str]:
        path = write_parquet(tmp_path / "train.parquet", [*rows(1000), row(1000, prompt="x" * letters), *rows(999)])
        return f"data.train_files={path}", "data.filter_overlong_prompts=False"

    check_all(run(*overrides(LONGEST_PROMPT)))
    message = refusal(run, *overrides(LONGEST_PROMPT + 1))
    assert message.startswith(
        "data.max_prompt_length=32: data.train_files has a prompt of 33 tokens, and verl would cut"
    )
    assert "'xxx" in message and "set data.filter_overlong_prompts=True" in message
    (tmp_path / "mine.py").write_text(
        CUSTOM.format(change="") + "    def maybe_filter_out_long_prompts(self, rows): return rows"
    )
    keeps = (
        "data.filter_overlong_prompts=True",
        f"data.custom_cls.path={tmp_path}/mine.py",
        "data.custom_cls.name=Mine",
    )
    assert refusal(run, *overrides(LONGEST_PROMPT + 1), *keeps).endswith(
        "; raise the limit, or leave it out of the data"
    )


@pytest.mark.parametrize(
    ("letters", "limit_tok", "kept", "longest_tok", "least_tok"),
    [
        ([3] * 7 + [LONGEST_PROMPT + 1] * 9, 32, 7, 33, 33),
        ([20, 1, 7, 5, 3, 6, 2, 9, 8, 4, 10, 11, 12, 13, 14, 15], 4, 0, 28, 16),  # the eighth shortest has 8 + 8
    ],
)
def test_given_a_limit_that_too_few_prompts_keep_then_the_one_that_a_batch_keeps_is_named(
    run, tmp_path, letters, limit_tok, kept, longest_tok, least_tok
):
    path = write_parquet(tmp_path / "train.parquet", [row(k, prompt="x" * count) for k, count in enumerate(letters)])
    limit = f"data.max_prompt_length={limit_tok}"
    assert refusal(run, f"data.train_files={path}", limit) == (
        f"{limit}: verl keeps only {kept} of the 16 prompts in data.train_files, fewer than one batch; "
        f"others are longer than {limit}, up to {longest_tok} tokens; set it to {least_tok} at least"
    )


def test_given_prompts_of_any_length_when_only_a_sample_is_looked_at_then_that_is_told(run, tmp_path):
    path = write_parquet(tmp_path / "train.parquet", rows(600))
    told = left_out(run(f"data.train_files={path}", "data.filter_overlong_prompts=False"))
    said = "data.train_files: 3.. of 600 prompts are checked for length"
    assert re.fullmatch(said, told)


def test_given_hundred_thousand_rows_when_checked_then_a_sample_is_rendered_and_little_memory_is_taken(
    run, tmp_path, monkeypatch
):
    path = tmp_path / "train.parquet"
    table = pa.Table.from_pylist(rows(1000))
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(100):
            writer.write_table(table)
    rendered, render = list[int](), PreTrainedTokenizerBase.apply_chat_template

    def counted(tokenizer: PreTrainedTokenizerBase, *arguments: Any, **options: Any) -> Any:
        rendered.append(1)
        return render(tokenizer, *arguments, **options)

    monkeypatch.setattr(PreTrainedTokenizerBase, "apply_chat_template", counted)
    before = pa.total_allocated_bytes()
    check(run(f"data.train_files={path}"))
    assert SAMPLE_ROWS / 2 < len(rendered) < 4 * SAMPLE_ROWS, "by verl's filter, and to be counted"
    assert pa.total_allocated_bytes() - before < 1e6


@pytest.mark.parametrize("column", ["prompt", "problem"])
def test_text_where_messages_are_expected_is_told_with_the_columns_that_verl_reads(run, tmp_path, column):
    """ "training sees no videos" was said of it."""
    content = [{"data_source": "sums", column: f"{one}+1=", "reward_model": {"ground_truth": "2"}} for one in range(16)]
    message = refusal(run, f"data.train_files={write_parquet(tmp_path / 'train.parquet', content)}")
    assert ("has '0+1=' where messages are expected" if column == "prompt" else "KeyError: 'prompt'") in message
    for name in ("prompt=[{'role': 'user', 'content': TEXT}]", "data_source=", "reward_model={'ground_truth': ANSWER}"):
        assert name in message
    assert "extra_info; docs/your_own.md" in message
