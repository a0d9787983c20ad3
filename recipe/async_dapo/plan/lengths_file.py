"""Response lengths from a file: one a response or a group, or the metrics of an earlier run."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import ConfigError
from .lengths import LengthModel, measured_lengths
from .lengths_of_metrics import fit_lengths


def load_lengths(path: str, *, default_correlation: float) -> LengthModel:
    """Lengths that a JSONL or parquet file holds, or a log-normal that fits a run's `metrics.jsonl`.

    Args:
        default_correlation: within a group, where the file does not tell [0-1].

    Raises:
        ConfigError: when the file is missing, cannot be read, or tells no lengths.
    """
    rows = _read_rows(Path(path))
    if steps := [row["data"] for row in rows if isinstance(row.get("data"), Mapping)]:
        return fit_lengths(steps, path=path, correlation=default_correlation)
    return measured_lengths(rows, path=path, default_correlation=default_correlation)


def _read_rows(path: Path) -> Sequence[Mapping[str, Any]]:
    if not path.is_file():
        raise ConfigError("lengths", path, "no such file; give a JSONL or parquet file, or set length_median_tok")
    if path.suffix == ".parquet":
        import pyarrow.parquet  # only where a parquet file is read

        try:
            return pyarrow.parquet.read_table(path).to_pylist()
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise ConfigError("lengths", path, f"cannot be read as parquet ({error})") from error
    try:
        lines = path.read_text().splitlines()
    except (UnicodeDecodeError, OSError) as error:
        raise ConfigError("lengths", path, f"cannot be read as text ({error}); give a JSONL or parquet file") from error
    rows = []
    for number, line in enumerate(lines):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError as error:
            raise ConfigError(
                "lengths", path, f"line {number + 1} is not JSON ({error}); write one object per line"
            ) from error
        if row is not None:
            rows.append(row if isinstance(row, dict) else {"length": row})
    return rows
