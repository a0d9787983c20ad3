"""Writes a data set of sums, whose tens are asked for: python examples/data_set/make_data.py [FOLDER]"""

import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FILES = {"train.parquet": 2000, "val.parquet": 100}  # prompts


def row(index: int, numbers: random.Random) -> dict[str, Any]:
    """The four columns that verl reads."""
    start, times = numbers.randrange(100), numbers.randrange(1, 4)
    return {
        "data_source": "sums",  # names the kind of task; your reward function gets it
        "prompt": [{"role": "user", "content": f"{start:02d}+4*{times:02d}"}],
        "reward_model": {"style": "rule", "ground_truth": str((start + 4 * times) % 100 // 10)},
        "extra_info": {"index": index},  # anything else that your reward function needs
    }


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(0)
    for name, count in FILES.items():
        table = pa.Table.from_pylist([row(index, numbers) for index in range(count)])
        pq.write_table(table, folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else "data"))
