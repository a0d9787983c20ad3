"""The data files: every row is looked at for missing values and for the bytes of its prompt, and a sample is taken.

Files are streamed batch by batch, never held in memory: 1.8 million rows take seconds. The sample holds rows at equal
distances, and the first one of each file and data source. Where verl does not filter prompts by their length, it also
holds each one that may be too long. The columns of a custom data set class are not known: its rows are sampled only.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq
from omegaconf import DictConfig

from ..config.values import ConfigError
from .agent_loop_check import AGENT_COLUMN
from .verl_options import listed

SAMPLE_ROWS = 512  # of an option's files together; where they have no more, all of them
MAX_LONG = 20_000  # different prompts that are sampled for their bytes
SOURCE, ANSWER = "data_source", "reward_model"  # verl's reward managers read these columns by name
UNSEEN = "training sees no videos and no audio; leave them out"
_BATCH_ROWS = 65_536
# Pictures take megabytes and tenths of a second each: fewer rows are read at once, and sampled.
_PICTURE_BATCH_ROWS, PICTURE_SAMPLE_ROWS = 256, 64

Content: TypeAlias = pq.ParquetFile | pa.Table


def local_files(config: DictConfig, key: str) -> list[Path]:
    """The option's files, on this machine; those on HDFS are fetched to verl's own cache."""
    from verl.utils.fs import copy_to_local

    cache = str(Path(config.data.get("cache_dir", "~/.cache/verl/rlhf")).expanduser())
    return [Path(copy_to_local(str(name), cache_dir=cache)).expanduser() for name in listed(config.data[key])]


@dataclass(slots=True, kw_only=True)
class DataFiles:
    """The files of one option, and the sample of their rows.

    Args:
        key: the option.
        config: verl's node `data`.
        needs_truth: whether each row must say what is right; a reward model can do without.
        no_pictures: why the model can be shown none; empty if it can.
        bound_tok: at most so many tokens has each prompt of a column.
    """

    key: str
    config: DictConfig
    needs_truth: bool
    no_pictures: str
    bound_tok: Callable[[pa.Array], np.ndarray]
    rows: int = 0
    _sources: set[str] = field(default_factory=set)
    _long: set[int] = field(default_factory=set)
    _parts: dict[tuple[pa.Schema, str], tuple[Path, list[pa.RecordBatch]]] = field(default_factory=dict)

    def read(self, files: list[Path]) -> None:
        """Look at every row, and take the sample.

        Raises:
            ConfigError: naming the file, and the column or the row.
        """
        opened = [(file, _open(self.key, file)) for file in files]
        schemas = [
            content.schema_arrow if isinstance(content, pq.ParquetFile) else content.schema for _, content in opened
        ]
        has_pictures = any(self.config.image_key in schema.names for schema in schemas)
        most, at_once = (PICTURE_SAMPLE_ROWS, _PICTURE_BATCH_ROWS) if has_pictures else (SAMPLE_ROWS, _BATCH_ROWS)
        step = -(-sum(_num_rows(content) for _, content in opened) // most)
        for (file, content), schema in zip(opened, schemas, strict=True):
            _, part = self._parts.setdefault((schema.remove_metadata(), file.suffix), (file, []))
            with _readable(self.key, file):
                if not self.is_custom:
                    self._check_schema(file, schema)
                for number, batch in enumerate(_batches(content, at_once)):
                    wanted = np.arange(self.rows, self.rows + len(batch)) % step == 0
                    wanted[0] |= number == 0
                    if not self.is_custom:
                        wanted |= self._look_at(file, batch)
                    part.append(batch.filter(pa.array(wanted)))
                    self.rows += len(batch)

    @property
    def is_custom(self) -> bool:
        """A data set class of the user's reads them."""
        return self.config.custom_cls.path is not None

    @property
    def unchecked(self) -> int:
        """Long prompts that the sample has no place for [count]."""
        return max(0, len(self._long) - MAX_LONG)

    def write_sample(self, folder: Path) -> list[str]:
        """As files of the same formats; those with the same columns as one."""
        paths = []
        for number, (file, batches) in enumerate(self._parts.values()):
            (folder / str(number)).mkdir()
            path, table = folder / str(number) / file.name, pa.Table.from_batches(batches)
            if file.suffix == ".parquet":
                pq.write_table(table, path)
            else:
                path.write_text("".join(f"{json.dumps(row, default=str)}\n" for row in table.to_pylist()))
            paths.append(str(path))
        return paths

    def _check_schema(self, file: Path, schema: pa.Schema) -> None:
        prompt_key = self.config.prompt_key
        if missing := [name for name in (prompt_key, SOURCE, ANSWER) if name not in schema.names]:
            raise ConfigError(
                self.key,
                file,
                f"lacks the columns {missing}, it has {schema.names}; name the prompt's column in data.prompt_key, or "
                "prepare the data as verl wants it",
            )
        for name, wanted, is_right in (
            (prompt_key, "[{'role': ..., 'content': ...}, ...]", _is_chat),
            (SOURCE, "text", _is_text),
            (ANSWER, "{'ground_truth': ...}", lambda kind: _has_fields(kind, "ground_truth")),
            ("extra_info", "{...}", lambda kind: pa.types.is_struct(kind) or pa.types.is_null(kind)),
            (AGENT_COLUMN, "text", _is_text),
        ):
            if name in schema.names and not is_right(kind := schema.field(name).type):
                raise ConfigError(self.key, file, f"column {name} must hold {wanted}, it holds {kind}")
        content = schema.field(prompt_key).type.value_type.field("content").type
        if media := [name for name in (self.config.video_key, self.config.audio_key) if name in schema.names]:
            raise ConfigError(self.key, file, f"has the columns {media}: {UNSEEN}")
        if not _is_text(content):
            remedy = f"must be text, with <image> where one of the column {self.config.image_key} is shown"
            raise ConfigError(self.key, file, f"has content of {content}: {remedy}")
        if self.no_pictures and self.config.image_key in schema.names:
            raise ConfigError(self.key, file, f"has the column {self.config.image_key}: {self.no_pictures}")

    def _look_at(self, file: Path, batch: pa.RecordBatch) -> np.ndarray:
        """Refuse missing values. Returns which rows the sample needs for their sources and their lengths."""
        prompts, sources = batch.column(self.config.prompt_key), batch.column(SOURCE)
        if pa.types.is_dictionary(sources.type):
            sources = sources.dictionary_decode()
        truths = pc.struct_field(batch.column(ANSWER), "ground_truth")
        loops = batch.column(AGENT_COLUMN) if AGENT_COLUMN in batch.schema.names else pa.array([""])
        for what, bad in (
            ("prompt", pc.fill_null(pc.less(pc.list_value_length(prompts), 1), True)),
            (SOURCE, pc.is_null(sources)),
            ("ground truth", pc.and_(pc.is_null(truths), self.needs_truth)),
            (AGENT_COLUMN, pc.is_null(loops)),
        ):
            if (first := pc.index(bad, True).as_py()) >= 0:
                raise ConfigError(self.key, file, f"row {self.rows + first} has no {what}; prepare the data again")
        wanted = np.zeros(len(batch), bool)
        for source in pc.unique(sources).to_pylist():
            if source not in self._sources and len(self._sources) < SAMPLE_ROWS:
                self._sources.add(source)
                wanted[pc.index(sources, source).as_py()] = True
        if not self.config.filter_overlong_prompts:
            for row in (self.bound_tok(prompts) > self.config.max_prompt_length).nonzero()[0]:
                if (prompt := hash(repr(prompts[row].as_py()))) not in self._long:
                    wanted[row] = len(self._long) < MAX_LONG
                    self._long.add(prompt)
        return wanted


def _is_text(kind: pa.DataType) -> bool:
    bare = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(bare) or pa.types.is_large_string(bare)


def _has_fields(kind: pa.DataType, *names: str) -> bool:
    return pa.types.is_struct(kind) and all(kind.get_field_index(name) >= 0 for name in names)


def _is_chat(kind: pa.DataType) -> bool:
    return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _has_fields(kind.value_type, "role", "content")


@contextmanager
def _readable(key: str, file: Path) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except (pa.ArrowException, OSError, ValueError, AttributeError, KeyError) as error:
        raise ConfigError(key, file, f"cannot be read: {error}; prepare the data again") from error


def _open(key: str, file: Path) -> Content:
    """JSON is one object a line, or one array of objects; all of it in memory, as verl does."""
    with _readable(key, file):
        if file.suffix == ".parquet":
            return pq.ParquetFile(file)
        with open(file, "rb") as stream:
            first = stream.read(64).strip()[:1]
        if first == b"[":
            return pa.Table.from_pylist(json.loads(file.read_text()))
        if first == b"n":
            raise ValueError("null is no row")  # pyarrow dies of it
        return pyarrow.json.read_json(file) if first else pa.table({})


def _num_rows(content: Content) -> int:
    return content.metadata.num_rows if isinstance(content, pq.ParquetFile) else content.num_rows


def _batches(content: Content, at_once: int) -> Iterator[pa.RecordBatch]:
    if isinstance(content, pq.ParquetFile):
        return content.iter_batches(batch_size=at_once)
    return iter(content.to_batches(max_chunksize=at_once))
