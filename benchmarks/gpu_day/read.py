"""What a quarter of an hour on one GPU has shown: its files go to `assets/gpu/`, its figures are printed.

python -m benchmarks.gpu_day.read RESULTS

Prints each part's end, and each system's step over that of verl's mode. What the speeds say of the engine is written to
`constants.json` there; `python -m benchmarks.defaults --grid measured` simulates with it, beside the earlier tables.
"""

import argparse
import json
import shutil
from pathlib import Path

import pandas as pd

from benchmarks.defaults.settings import MEASURED
from recipe.async_dapo_lab.gpu_check.assets import LARGE
from recipe.async_dapo_lab.plan.calibration import calibrate
from recipe.async_dapo_lab.plan.hardware import Accelerator, find_accelerator, shape_of

OTHER = "verl colocate_async, 0.05 s poll"


def compared(runs: pd.DataFrame) -> pd.DataFrame:
    """Each system's seconds a step, and their ratio to those of verl's own mode where that was run."""
    steps = runs.groupby("system", sort=False)["step_s"].mean()
    return pd.DataFrame({"step_s": steps, "ratio": steps / steps.get(OTHER, float("nan"))}).round(3)


def constants(record: Path, accelerator: Accelerator) -> dict[str, float]:
    """Fields of the planner's `ServerConstants`, as an engine with an 8B model's sizes has shown them: `step_cost`,
    solved for what it reaches of the accelerator.
    """
    model, fitted = shape_of(LARGE, name="an 8B model"), calibrate(str(record), num_servers=1)
    if not fitted.per_kv_token_s:
        raise SystemExit(f"{record}: reading the cache takes no time, so its bandwidth is not known; {fitted}")
    bytes_per_s = model.kv_bytes_per_token / fitted.per_kv_token_s
    cells = [json.loads(line) for line in record.read_text("utf-8").splitlines()]
    flop_per_s = max(
        cell["inflight"] * model.forward_flops(cell["context_tok"], cell["context_tok"] ** 2) / cell["prefill_s"]
        for cell in cells
        if cell["prefill_s"] > 0
    )
    return {
        "bandwidth_share": bytes_per_s / (1e12 * accelerator.bandwidth_tb_s),
        "step_overhead_ms": 1e3 * max(0.0, fitted.base_s - model.weight_bytes / bytes_per_s),
        "request_overhead_ms": 1e3 * fitted.per_request_s,
        "prefill_flop_share": flop_per_s / (1e12 * accelerator.bf16_tflop_s),
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
