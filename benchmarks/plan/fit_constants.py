"""The three fitted constants: those of a coarse grid that come nearest to CoPRIS Table 2's rollout times.

python -m benchmarks.plan.fit_constants writes constants_fit.csv. No other published number takes part in the choice.
"""

import math
from dataclasses import replace
from itertools import product

import pandas as pd

from .published_claims import TABLE_2
from .published_settings import Case, cases, run
from .summary import FOLDER

STEP_OVERHEAD_MS = (2.0, 5.0, 8.0)
REQUEST_OVERHEAD_MS = (0.12, 0.18, 0.24)
PREFILL_FLOP_SHARE = (0.15, 0.25, 0.40)


def main() -> None:
    rows = []
    for step_ms, request_ms, prefill in product(STEP_OVERHEAD_MS, REQUEST_OVERHEAD_MS, PREFILL_FLOP_SHARE):
        constants = {"step_overhead_ms": step_ms, "request_overhead_ms": request_ms, "prefill_flop_share": prefill}
        rows.append({**constants, "rms_of_log_error": round(distance(constants), 3)})
    pd.DataFrame(rows).sort_values("rms_of_log_error").to_csv(FOLDER / "constants_fit.csv", index=False)


def distance(constants: dict[str, float]) -> float:
    """Root mean square of the logarithm of simulated over published rollout seconds."""
    errors = []
    for name, (_, rollout_s, _) in TABLE_2.items():
        case = cases()[name]
        scenario = replace(case.scenario, constants=replace(case.scenario.constants, **constants))
        simulated = run(Case(scenario=scenario, system=case.system, warmup=8, steps=5))
        errors.append(math.log(simulated.rollout_s / rollout_s))
    return math.sqrt(sum(error * error for error in errors) / len(errors))


if __name__ == "__main__":
    main()
