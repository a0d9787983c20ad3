"""Your questions and answers as verl's data: `python -m recipe.async_dapo_lab.data FILE --output FOLDER`.

FILE is a parquet or JSON Lines file with a row for each question. FOLDER gets train.parquet, and val.parquet with the
rows that are held out: verl's columns `prompt` (chat messages), `reward_model` (with the answer as `ground_truth`),
`data_source` and `extra_info`. It shows what it made of the first row, and counts each row that it left out.
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..async_dapo.config.values import ConfigError
from .command_line import path

QUESTIONS = ("question", "problem", "prompt", "query", "instruction", "input")
ANSWERS = ("answer", "gold", "ground_truth", "solution", "target", "label", "output")
_HELD_OUT_SHARE, _MOST_HELD_OUT = 20, 512  # one row in so many
_MOST_NAMED = 5  # rows that are left out for the same reason
_PICTURE = "<image>"  # verl's placeholder in a prompt's text
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns of the file mean what, and what each row gets beside them.

    Attributes:
        source: the value of `data_source`; `source_column` goes before it.
        after: only what follows the last of this mark is the answer, as `####` in GSM8K; None: all of it.
    """

    question: str
    answer: str
    images: str | None = None
    source_column: str | None = None
    source: str
    system: str | None = None
    after: str | None = None


class LeftOut(Exception):
    """A row that cannot be used; the message says why, the same for all rows alike."""


def main(arguments: Sequence[str] | None = None) -> None:
    parsed = _parse(arguments)
    try:
        rows = read_rows(parsed.file)
        columns = _columns(parsed, rows)
        made, left_out = convert(rows, columns)
        if not made:
            raise ConfigError("FILE", parsed.file, f"no row can be used: {_counts(left_out)}")
        train, held_out = split(made, parsed.held_out, seed=parsed.seed)
        files = write(parsed.output, train, held_out)
    except ConfigError as error:
        sys.exit(f"async_dapo: {error}")
    lines = [
        f"{columns.question} -> prompt, {columns.answer} -> reward_model.ground_truth; the first row:",
        *(f"  {name}: {value}" for name, value in made[0].items()),
        f"{len(rows)} rows: {len(train)} to train on, {len(held_out)} held out"
        + (f"; left out: {_counts(left_out)}" if left_out else ""),
        *map(str, files),
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def read_rows(file: Path) -> list[dict[str, Any]]:
    """
    Raises:
        ConfigError: for a file that is not there, of another kind, or empty.
    """
    import pyarrow
    import pyarrow.parquet

    if not file.is_file():
        raise ConfigError("FILE", file, "no such file")
    try:
        if file.suffix == ".parquet":
            rows: list[dict[str, Any]] = pyarrow.parquet.read_table(file).to_pylist()
        elif file.suffix in (".jsonl", ".json", ".ndjson"):
            with file.open(encoding="utf-8") as lines:
                rows = [json.loads(line) for line in lines if line.strip()]
        else:
            raise ConfigError("FILE", file, "must be .parquet or .jsonl")
    except (pyarrow.ArrowException, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("FILE", file, f"cannot be read: {error}; JSON Lines have one object a line") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ConfigError("FILE", file, "must have rows, each with columns; JSON Lines have one object a line")
    return rows


def column_of(rows: Sequence[Row], option: str, named: str | None, usual: Sequence[str]) -> str:
    """The column that was named, or the only one that is there of the usual names.

    Raises:
        ConfigError: naming the columns that there are.
    """
    there = list(dict.fromkeys(name for row in rows for name in row))
    if named is not None and named not in there:
        raise ConfigError(option, named, f"no such column; there are {', '.join(there)}")
    found = [named] if named is not None else [name for name in usual if name in there]
    if len(found) != 1:
        what = "none of the usual names is there" if not found else f"{' and '.join(found)} may be meant"
        raise ConfigError(option, None, f"{what}; name one of {', '.join(there)}")
    return found[0]


def convert(rows: Sequence[Row], columns: Columns) -> tuple[list[dict[str, Any]], dict[str, list[int]]]:
    """Rows with verl's columns, and which are left out for which reason. Of a question that comes again the first
    row stays: else a held-out one could be trained on.
    """
    made: list[dict[str, Any]] = []
    left_out: dict[str, list[int]] = {}
    seen: set[str] = set()
    for index, row in enumerate(rows):
        try:
            new = _row(row, columns, index)
            key = json.dumps([new["prompt"], str(new.get("images"))])
            if key in seen:
                raise LeftOut("its question comes again")
        except LeftOut as reason:
            left_out.setdefault(str(reason), []).append(index)
        else:
            seen.add(key)
            made.append(new)
    return made, left_out


def split(rows: Sequence[Row], held_out: int | None, *, seed: int) -> tuple[list[Row], list[Row]]:
    """Training rows in their order, and those held out.

    Args:
        held_out: None: one in twenty, at most 512.

    Raises:
        ConfigError: if nothing is left to train on.
    """
    count = min(_MOST_HELD_OUT, len(rows) // _HELD_OUT_SHARE) if held_out is None else held_out
    if count >= len(rows):
        raise ConfigError("--held-out", count, f"must be less than the {len(rows)} rows that there are")
    chosen = set(random.Random(seed).sample(range(len(rows)), count))
    train = [row for index, row in enumerate(rows) if index not in chosen]
    return train, [row for index, row in enumerate(rows) if index in chosen]


def write(folder: Path, train: Sequence[Row], held_out: Sequence[Row]) -> list[Path]:
    import pyarrow
    import pyarrow.parquet

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, rows in (("train.parquet", train), ("val.parquet", held_out)):
        file = folder / name
        if not rows:
            file.unlink(missing_ok=True)  # of an earlier command: its rows may be trained on now
            continue
        part = file.with_suffix(".part")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), part)
        part.replace(file)
        files.append(file)
    return files


def _row(row: Row, columns: Columns, index: int) -> dict[str, Any]:
    messages = list(_messages(row.get(columns.question), columns.system))
    images = [] if columns.images is None else list(_images(row.get(columns.images)))
    if missing := len(images) - sum(str(message["content"]).count(_PICTURE) for message in messages):
        if missing != len(images):
            raise LeftOut(f"its text has another number of {_PICTURE} than it has pictures")
        messages[-1] = messages[-1] | {"content": _PICTURE * len(images) + messages[-1]["content"]}
    made = {
        "data_source": str(row.get(columns.source_column or "") or columns.source),
        "prompt": messages,
        "reward_model": {"style": "rule", "ground_truth": _answer(row.get(columns.answer), columns.after)},
        "extra_info": {"index": index},
    }
    return made | ({"images": images} if columns.images is not None else {})


def _messages(question: Any, system: str | None) -> Iterator[dict[str, Any]]:
    if system is not None:
        yield {"role": "system", "content": system}
    if isinstance(question, str) and question.strip():
        yield {"role": "user", "content": question}
    elif isinstance(question, list) and question and all(isinstance(one, dict) for one in question):
        if not all({"role", "content"} <= one.keys() for one in question):
            raise LeftOut("its messages lack role or content")
        yield from (one for one in question if system is None or one["role"] != "system")
    else:
        raise LeftOut("its question is empty, or neither text nor messages")


def _answer(answer: Any, after: str | None) -> str:
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if isinstance(answer, list | dict):
        raise LeftOut("its answer is a list or a mapping")
    is_missing = answer is None or answer != answer  # as pandas writes it, a number that is none
    text = "" if is_missing else str(answer)
    if after is not None:
        if after not in text:
            raise LeftOut(f"its answer has no {after}")
        text = _THOUSANDS.sub("", text.rpartition(after)[2].strip())
    if not text.strip():
        raise LeftOut("its answer is empty")
    return text


def _images(value: Any) -> Iterator[Any]:
    for image in value if isinstance(value, list) else [value]:
        if isinstance(image, str):
            path = Path(image).expanduser().absolute()
            if not path.is_file():
                raise LeftOut("the file of its picture is not there")
            yield {"image": str(path)}
        elif isinstance(image, dict) and image.get("bytes"):
            yield {"bytes": image["bytes"]}
        elif isinstance(image, bytes):
            yield {"bytes": image}
        else:
            raise LeftOut("it has no picture")


def _columns(parsed: argparse.Namespace, rows: Sequence[Row]) -> Columns:
    for option in ("images", "source_column"):
        if (named := getattr(parsed, option)) is not None:
            column_of(rows, f"--{option.replace('_', '-')}", named, ())
    return Columns(
        question=column_of(rows, "--question", parsed.question, QUESTIONS),
        answer=column_of(rows, "--answer", parsed.answer, ANSWERS),
        images=parsed.images,
        source_column=parsed.source_column,
        source=parsed.source or parsed.file.stem,
        system=parsed.system,
        after=parsed.answer_after,
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=path, metavar="FILE")
    parser.add_argument("--output", type=path, required=True, metavar="FOLDER")
    parser.add_argument("--question", metavar="COLUMN", help="text, or chat messages [the usual name that is there]")
    parser.add_argument("--answer", metavar="COLUMN", help="[the usual name that is there]")
    parser.add_argument(
        "--answer-after",
        metavar="MARK",
        help="the answer begins behind it, as behind #### in GSM8K; 1,054 becomes 1054",
    )
    parser.add_argument("--system", metavar="TEXT", help="system prompt of every row")
    parser.add_argument("--source", metavar="NAME", help="the kind of task: the reward function gets it [FILE's name]")
    parser.add_argument("--source-column", metavar="COLUMN", help="where rows say their kind themselves")
    parser.add_argument("--images", metavar="COLUMN", help="pictures of each row: paths or bytes")
    parser.add_argument("--held-out", type=int, metavar="N", help="rows for validation [1 in 20, at most 512]")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of these [0]")
    parsed = parser.parse_args(arguments)
    if parsed.held_out is not None and parsed.held_out < 0:
        parser.error(f"--held-out={parsed.held_out}: must be at least 0")
    return parsed


def _counts(left_out: Mapping[str, Sequence[int]]) -> str:
    """With the first rows of each reason, counted as in `extra_info`."""
    said = []
    for reason, rows in sorted(left_out.items(), key=lambda one: -len(one[1])):
        named = ", ".join(map(str, rows[:_MOST_NAMED])) + (", ..." if len(rows) > _MOST_NAMED else "")
        said.append(f"{len(rows)} ({reason}: row{'s' * (len(rows) > 1)} {named})")
    return ", ".join(said) + "; the first row is row 0"


if __name__ == "__main__":
    main()
