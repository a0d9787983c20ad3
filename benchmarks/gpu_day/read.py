"""What a quarter of an hour on one GPU has shown: its files go to `assets/gpu/`, its figures are printed.

python -m benchmarks.gpu_day.read RESULTS

Prints each part's end, and each system's step over that of verl's mode. What the speeds say of the engine is written to
`constants.json` there; `python -m benchmarks.defaults --grid measured` simulates with it, beside the earlier tables.
"""

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.defaults.settings import MEASURED
from recipe.async_dapo_lab.gpu_check.assets import LARGE
from recipe.async_dapo_lab.plan.hardware import Accelerator, find_accelerator
from recipe.async_dapo_lab.plan.model_size import shape_of

OTHER = "verl colocate_async, 0.05 s poll"


def compared(runs: pd.DataFrame) -> pd.DataFrame:
    """Each system's seconds a step, and their ratio to those of verl's own mode where that was run."""
    steps = runs.groupby("system", sort=False)["step_s"].mean()
    return pd.DataFrame({"step_s": steps, "ratio": steps / steps.get(OTHER, float("nan"))}).round(3)


def constants(record: Path, accelerator: Accelerator) -> dict[str, float]:
    """Fields of the planner's `ServerConstants`, as an engine with an 8B model's sizes has shown them.

    Least squares of relative errors over `step_cost`'s decode step; nothing is read faster than the memory can.
    """
    model = shape_of(LARGE, name="an 8B model")
    cells = pd.read_json(record, lines=True)
    step_s = cells["inflight"] / cells["tokens_per_s"]
    read_bytes = model.weight_bytes + model.kv_bytes_per_token * cells["kv_tok"]
    peak_bytes_per_s = 1e12 * accelerator.bandwidth_tb_s
    step, request, read = 1 / step_s, cells["inflight"] / step_s, read_bytes / step_s
    *_, free_byte_s = np.linalg.lstsq(np.column_stack([step, request, read]), np.ones(len(cells)))[0]
    byte_s = max(1 / peak_bytes_per_s, free_byte_s)
    overhead_s, request_s = np.linalg.lstsq(np.column_stack([step, request]), 1 - byte_s * read)[0]
    flop_per_s = max(
        cell.inflight * model.forward_flops(cell.context_tok, cell.context_tok**2) / cell.prefill_s
        for cell in cells[cells["prefill_s"] > 0].itertuples()
    )
    return {
        "bandwidth_share": round(float(1 / (byte_s * peak_bytes_per_s)), 3),
        "step_overhead_ms": round(1e3 * float(overhead_s), 3),
        "request_overhead_ms": round(1e3 * float(request_s), 4),
        "prefill_flop_share": round(flop_per_s / (1e12 * accelerator.bf16_tflop_s), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--assets", type=Path, default=MEASURED.parent)
    parser.add_argument("--accelerator", default="h100", help="that it ran on")
    options = parser.parse_args()
    options.assets.mkdir(parents=True, exist_ok=True)
    for file in sorted(options.results.iterdir()):
        if file.is_file():
            shutil.copy(file, options.assets)
    for line in (options.results / "parts.jsonl").read_text("utf-8").splitlines():
        print({key: value for key, value in json.loads(line).items() if key != "last_lines"})
    if (runs := options.results / "runs.csv").exists():
        print(compared(pd.read_csv(runs)).to_string())
    if (record := options.results / "calibration.jsonl").exists():
        found = constants(record, find_accelerator(options.accelerator))
        (options.assets / MEASURED.name).write_text(json.dumps(found, indent=2) + "\n", "utf-8")
        print(found)


if __name__ == "__main__":
    main()
