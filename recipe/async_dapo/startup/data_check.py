"""The data: training and validation files, the lengths of their prompts, and the file of prompts' histories.

Files are streamed column by column, never held in memory as Python objects: 1.8 million rows take seconds. Every row is
checked for its columns, missing values and length in bytes. Only prompts whose bytes exceed the limit are tokenized, as
a token has at least one byte; at most `MAX_TOKENIZED` distinct ones, the longest. Tool schemas are not counted.
"""

import heapq
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq
from omegaconf import DictConfig

from ..config import AsyncDAPOConfig
from ..option_values import ConfigError, refused
from ..record.data_history import read_history
from ..record.history import KEY
from .model_check import load_by_verl
from .trainer_check import check_storage
from .verl_options import listed

logger = logging.getLogger(__name__)

_RESERVED_TEMPLATE_OPTIONS = ("tokenize", "return_dict", "return_tensors")  # beyond these, templates get verl's own
MAX_TOKENIZED = 20_000
SOURCE, ANSWER = "data_source", "reward_model"  # verl's reward managers read these columns by name
UNSUPPORTED_COLUMNS = ("__rollout_n__", "__do_sample__")  # verl's per-prompt overrides
_BATCH_ROWS = 65_536
_OTHER_SAMPLES = (
    "verl chooses data.{}_max_samples={} prompts at every start, others when the run is resumed; set a seed, such as 1"
)


class _TokenCounter:
    """A counter of a prompt's tokens, as verl's data set counts (the chat template with a generation prompt), with a
    bound on them that needs no run of the tokenizer.

    Raises:
        ConfigError: if the model cannot be loaded, or its tokenizer has no chat template.
    """

    def __init__(self, config: DictConfig) -> None:
        self.limit_tok: int = config.data.max_prompt_length
        self._template_options = {
            key: value
            for key, value in config.data.apply_chat_template_kwargs.items()
            if key not in _RESERVED_TEMPLATE_OPTIONS
        }
        self._tokenizer = load_by_verl(config).tokenizer
        try:
            self._template_tok = self.count_tok([{"role": "user", "content": ""}])
        except Exception as error:  # the template is the model's own code
            remedy = "set actor_rollout_ref.model.custom_chat_template"
            key = "actor_rollout_ref.model.path"
            raise refused(config, key, f"its chat template fails: {error}; {remedy}") from error

    def count_tok(self, prompt: list[dict[str, Any]]) -> int:
        tokens = self._tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=True, return_dict=False, **self._template_options
        )
        return len(tokens)

    def upper_bounds_tok(self, prompts: pa.Array) -> np.ndarray:
        """A bound per prompt: the bytes of its messages, and the template's own tokens for each of them."""
        messages = prompts.flatten()
        content = pc.struct_field(messages, "content")
        per_prompt = np.asarray(pc.list_value_length(prompts))
        per_message = np.asarray(pc.fill_null(pc.binary_length(content), 0)).astype(np.int64) + self._template_tok
        ends = np.cumsum(per_prompt)
        sums = np.concatenate([[0], np.cumsum(per_message)])
        return sums[ends] - sums[ends - per_prompt]


@dataclass(slots=True)
class _Census:
    """What one option's files hold, all files together.

    Args:
        enough_short: number of short prompts from which on long ones no longer matter; None: they always do.
        needs_truth: whether each row must say what is right; a reward model can do without.
    """

    enough_short: int | None
    needs_truth: bool
    rows: int = 0
    surely_short: int = 0
    suspects: dict[str, int] = field(default_factory=dict)  # prompt as JSON -> rows, for prompts that may be too long
    dropped_suspects: int = 0  # distinct ones, shorter than all that are kept
    row_of_source: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def has_enough(self) -> bool:
        return self.enough_short is not None and self.surely_short >= self.enough_short

    def add_suspect(self, prompt: list[dict[str, Any]]) -> None:
        text = json.dumps(prompt)
        self.suspects[text] = self.suspects.get(text, 0) + 1
        if len(self.suspects) >= 2 * MAX_TOKENIZED:
            self.keep_longest_suspects()

    def keep_longest_suspects(self) -> None:
        longest = heapq.nlargest(MAX_TOKENIZED, self.suspects, key=len)
        self.dropped_suspects += len(self.suspects) - len(longest)
        self.suspects = {text: self.suspects[text] for text in longest}


def check_data(config: DictConfig, options: AsyncDAPOConfig) -> list[dict[str, Any]]:
    """Check that files exist, have what verl reads, hold enough prompts, and that prompts fit.

    Returns:
        One row of every data source, to try the reward function on; none for a custom dataset class.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    keys = ("train_files", "val_files")
    files = {key: _local_files(config, key) for key in keys}
    if config.data.custom_cls.path is not None:
        logger.info("data.custom_cls is set: the content of the data files is not checked")
        check_storage(config, options, validated=0)
        return []
    counter = _TokenCounter(config)
    row_of_source: dict[str, dict[str, Any]] = {}
    for key, max_samples, wanted, unit in (
        ("train_files", config.data.train_max_samples, options.target_valid_groups, "one batch"),
        ("val_files", config.data.val_max_samples, 1, "one prompt"),
    ):
        census = _Census(
            enough_short=wanted if config.data.filter_overlong_prompts else None,
            needs_truth=not config.reward.reward_model.enable,
        )
        for file in files[key]:
            _take_census(f"data.{key}", file, config.data, counter, census)
        row_of_source = census.row_of_source | row_of_source
        available = min(census.rows, max_samples) if max_samples > 0 else census.rows
        if available < wanted:
            lower = f"lower data.train_batch_size={wanted} or " if key == "train_files" else ""
            raise refused(config, f"data.{key}", f"has {available} prompts, fewer than {unit}; {lower}add data")
        if 0 < max_samples < census.rows and config.data.shuffle and config.data.seed is None:
            raise ConfigError("data.seed", None, _OTHER_SAMPLES.format(key.split("_")[0], max_samples))
        _check_lengths(config, key, census, counter, wanted=wanted, unit=unit)
    at_once = min(available, config.data.val_batch_size or available)
    check_storage(config, options, validated=at_once * config.actor_rollout_ref.rollout.val_kwargs.n)
    return list(row_of_source.values())


def _local_files(config: DictConfig, key: str) -> list[Path]:
    """The option's files, on this machine; those on HDFS are fetched to verl's own cache."""
    value = config.data[key]
    names = listed(value)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"data.{key}", value, "must be a file or a list of files")
    return [_local_file(f"data.{key}", name, config) for name in names]


def _local_file(key: str, name: str, config: DictConfig) -> Path:
    if name.startswith("hdfs://"):
        from verl.utils.fs import copy_to_local

        name = copy_to_local(name, cache_dir=str(Path(config.data.get("cache_dir", "~/.cache/verl/rlhf")).expanduser()))
    path = Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(key, name, "no such file; make it with prepare_dapo_data.sh, or correct the path")
    if path.suffix not in (".parquet", ".json", ".jsonl"):
        raise ConfigError(key, name, "must end in .parquet, .json or .jsonl: verl reads no other format")
    return path


def _take_census(key: str, file: Path, config: DictConfig, counter: _TokenCounter, census: _Census) -> None:
    try:
        for batch in _batches(key, file, config):
            _count_batch(key, file, batch, counter, census)
    except (pa.ArrowException, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(key, file, f"cannot be read: {error}; prepare the data again") from error


def _batches(key: str, file: Path, config: DictConfig) -> Iterator[pa.RecordBatch]:
    """The columns that verl reads, named `prompt`, `data_source`, `reward_model` and, if there is one, `extra_info`."""
    if file.suffix == ".parquet":
        parquet = pq.ParquetFile(file)
        columns = _check_schema(key, file, parquet.schema_arrow, config, parquet.metadata.num_rows)
        batches = parquet.iter_batches(batch_size=_BATCH_ROWS, columns=columns)
    else:
        table = _read_json(file)
        columns = _check_schema(key, file, table.schema, config, table.num_rows)
        batches = iter(table.select(columns).to_batches(max_chunksize=_BATCH_ROWS))
    for batch in batches:
        yield batch.rename_columns(["prompt" if name == config.prompt_key else name for name in batch.schema.names])


def _read_json(file: Path) -> pa.Table:
    """One object a line, or one array of objects; all in memory, as verl does."""
    with open(file, "rb") as stream:
        is_array = stream.read(64).lstrip()[:1] == b"["
    if is_array:
        return pa.Table.from_pylist(json.loads(file.read_text()))
    if file.stat().st_size == 0:
        return pa.table({})
    return pyarrow.json.read_json(file)


def _check_schema(key: str, file: Path, schema: pa.Schema, config: DictConfig, rows: int) -> list[str]:
    """The columns to read. `prompt` holds chat messages, `reward_model` a ground truth."""
    prompt_key = config.prompt_key
    if rows == 0:
        raise ConfigError(key, file, "is empty; prepare the data again")
    required = [prompt_key, SOURCE, ANSWER]
    if missing := [name for name in required if name not in schema.names]:
        raise ConfigError(
            key,
            file,
            f"lacks the columns {missing}, it has {schema.names}; name the prompt's column in data.prompt_key, or "
            "prepare the data as verl wants it",
        )
    prompt = schema.field(prompt_key).type
    is_chat = (pa.types.is_list(prompt) or pa.types.is_large_list(prompt)) and pa.types.is_struct(prompt.value_type)
    if not is_chat or any(prompt.value_type.get_field_index(name) < 0 for name in ("role", "content")):
        raise ConfigError(
            key, file, f"column {prompt_key} must hold [{{'role': ..., 'content': ...}}, ...], it holds {prompt}"
        )
    content = prompt.value_type.field("content").type
    media = [name for name in (config.image_key, config.video_key, config.audio_key) if name in schema.names]
    if media or not (pa.types.is_string(content) or pa.types.is_large_string(content)):
        found = f"the columns {media}" if media else f"content of {content}"
        raise ConfigError(key, file, f"has {found}: training would not see images, video or audio; use text only")
    answer = schema.field(ANSWER).type
    if not pa.types.is_struct(answer) or answer.get_field_index("ground_truth") < 0:
        raise ConfigError(key, file, f"column {ANSWER} must hold {{'ground_truth': ...}}, it holds {answer}")
    if unsupported := [name for name in UNSUPPORTED_COLUMNS if name in schema.names]:
        raise ConfigError(key, file, f"has the columns {unsupported}, which this recipe does not read; drop them")
    return [*required, *(["extra_info"] if "extra_info" in schema.names else [])]


def _count_batch(key: str, file: Path, batch: pa.RecordBatch, counter: _TokenCounter, census: _Census) -> None:
    prompts, sources = batch.column("prompt"), batch.column(SOURCE)
    if pa.types.is_dictionary(sources.type):
        sources = sources.dictionary_decode()
    truths = pc.struct_field(batch.column(ANSWER), "ground_truth")
    for what, bad in (
        ("no prompt", pc.fill_null(pc.less(pc.list_value_length(prompts), 1), True)),
        ("no data_source", pc.is_null(sources)),
        ("no ground truth", pc.and_(pc.is_null(truths), census.needs_truth)),
    ):
        if (first := pc.index(bad, True).as_py()) >= 0:
            raise ConfigError(key, file, f"row {census.rows + first} has {what}; prepare the data again")
    for source in pc.unique(sources).to_pylist():
        if source not in census.row_of_source:
            census.row_of_source[source] = batch.slice(pc.index(sources, source).as_py(), 1).to_pylist()[0]
    bound_tok = counter.upper_bounds_tok(prompts)
    long_rows = (bound_tok > counter.limit_tok).nonzero()[0]
    census.rows += len(batch)
    census.surely_short += len(batch) - len(long_rows)
    if not census.has_enough:
        for prompt in prompts.take(pa.array(long_rows)).to_pylist():
            census.add_suspect(prompt)


def _check_lengths(
    config: DictConfig, key: str, census: _Census, counter: _TokenCounter, *, wanted: int, unit: str
) -> None:
    """Tokenize what may be too long. With `filter_overlong_prompts`, see that enough remains; else refuse the first."""
    if census.has_enough:
        return
    filters = config.data.filter_overlong_prompts
    census.keep_longest_suspects()
    fitting, too_long = census.surely_short, Counter[int]()  # rows, by their tokens
    for text, rows in census.suspects.items():
        prompt = json.loads(text)
        num_tok = counter.count_tok(prompt)
        if num_tok <= counter.limit_tok:
            fitting += rows
        elif filters:
            too_long[num_tok] += rows
        else:
            raise ConfigError(
                "data.max_prompt_length",
                counter.limit_tok,
                f"data.{key} has a prompt of {num_tok} tokens, whose response verl would silently shorten: "
                f"{prompt[-1]['content']!r:.80}; raise the limit, or set data.filter_overlong_prompts=True",
            )
    if census.dropped_suspects:
        logger.warning("data.%s: %d long prompts are not checked, only longer ones", key, census.dropped_suspects)
    elif filters and fitting < wanted:
        raise ConfigError(
            "data.max_prompt_length",
            counter.limit_tok,
            f"only {fitting} of the {census.rows} prompts in data.{key} are so short, fewer than {unit}; set it to "
            f"{_limit_for(wanted - fitting, too_long)} at least",
        )


def _limit_for(missing: int, too_long: Counter[int]) -> int:
    """Tokens that so many more prompts have at most."""
    for num_tok in sorted(too_long):
        missing -= too_long[num_tok]
        if missing <= 0:
            break
    return num_tok


def check_history(config: DictConfig, options: AsyncDAPOConfig) -> str | None:
    """See that the file of prompts' histories can be read and written, and is of this data set.

    Returns:
        How many prompts it knows; None without a file.

    Raises:
        ConfigError: naming the file, what is wrong with it, and the remedy.
    """
    path = options.selection.history_file
    if path is None:
        return None
    file = Path(path).expanduser()
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise ConfigError(KEY, path, "must be a file in a folder that exists and can be written to")
    return f"{len(read_history(path, config))} prompts known"
