"""verl's published job, planned from one of its published steps: python -m benchmarks.verl_job.fitted

The engines are fitted to the step of one mode, as `plan --record` does; the file has what the planner then says of the
others, beside what was published.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from recipe.async_dapo_lab.plan.fit import Fit, fit, recorded_candidate
from recipe.async_dapo_lab.plan.record import record_of_step
from recipe.async_dapo_lab.plan.sweep import simulate
from recipe.async_dapo_lab.plan.systems import VERL, VERL_COLOCATE_ASYNC, VERL_SYNC

from .run import CASES, FIXED, JOB, PUBLISHED
from .summary import FOLDER, read_published

FILE = "fitted.csv"


def rows() -> pd.DataFrame:
    """A row for each mode that the engines are fitted to, and each system that is planned with them."""
    published = read_published()[PUBLISHED]
    return pd.DataFrame(
        [
            row
            for base in (VERL_SYNC, VERL_COLOCATE_ASYNC)
            for row in _rows(fit(record_of_step(published[base], base), _job(), base.removeprefix(VERL)), published)
        ]
    )


def _job() -> dict[str, Any]:
    scenario = JOB.scenario(**FIXED, **CASES[PUBLISHED])
    return {
        "model": JOB.model,
        "accelerator": JOB.accelerator,
        "servers": scenario.num_servers,
        "tensor_parallel_size": scenario.tensor_parallel_size,
        "train_batch_size": scenario.train_batch_size,
        "rollout_n": scenario.rollout_n,
        "max_response_length": scenario.max_response_length,
        "length_median_tok": float(JOB.median_tok),
        "length_sigma": JOB.sigma,
        **FIXED,
        **CASES[PUBLISHED],
    }


def _rows(fitted: Fit, published: pd.Series) -> list[dict[str, Any]]:
    found = []
    for name in (VERL_SYNC, VERL_COLOCATE_ASYNC, "partial"):
        mean, _ = simulate(fitted.scenario, recorded_candidate(name, fitted.scenario), steps=None, warmup=None)
        found.append(
            {
                "fitted_to": fitted.mode,
                "engine_factor": fitted.inputs.engine_factor,
                "system": name,
                "planned_s": mean.step_s,
                "published_s": published.get(name),
            }
        )
    return found


def table() -> pd.DataFrame:
    """Of the file, for the page."""
    lines = pd.read_csv(FOLDER / FILE)
    error = 100 * (lines["planned_s"] / lines["published_s"] - 1)
    columns = {
        "fitted_to": "Engines fitted to",
        "engine_factor": "Seconds over the constants'",
        "system": "Step of",
        "planned_s": "Planned [s]",
        "published_s": "Published [s]",
    }
    return lines.assign(Off=error.map("{:+.0f} %".format).where(error.notna(), "")).rename(columns=columns)


if __name__ == "__main__":
    Path(FOLDER).mkdir(exist_ok=True)
    rows().to_csv(FOLDER / FILE, index=False, float_format="%.5g")
    print(table().to_string(index=False))
