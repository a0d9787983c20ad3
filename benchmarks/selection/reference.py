"""The planner's reference setting, simulated with and without screening and history, beside the same computed by hand.

python -m benchmarks.selection.reference

Pass rates are Beta(0.2, 0.6): half of the groups of 16 are all right or all wrong. Writes `assets/selection`.
"""

import pandas as pd

from benchmarks.selection.summary import FOLDER, SAMPLES, N, answers_by_hand, history_by_hand
from benchmarks.support.exact_selection import AllScreened
from recipe.async_dapo_lab.plan.inputs import Inputs
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import System, recipe

A, B = 0.2, 0.6
STEPS = 4
# Everything that is drawn is finished: no answer is in a buffer when the steps are over.
WHOLE = recipe("whole groups", stop_rule="drain", rollout_strategy="discard")
SCREENED = AllScreened(name="screened", overrides={**WHOLE.overrides, "async_dapo.screening.samples": SAMPLES})
EXPLORATION = 0.1  # the recipe's
HISTORY = WHOLE.with_overrides({"async_dapo.selection.by": "history"})


def simulated(system: System) -> float:
    """Answers for each valid group, over the steps."""
    run = TrainingRun(Inputs(pass_rate_beta=[A, B]).scenario(), system)
    steps = [run.step() for _ in range(STEPS)]
    answered = sum(SAMPLES * step.screened_groups + N * (step.valid_groups + step.filtered_groups) for step in steps)
    return answered / sum(step.valid_groups for step in steps)


def main() -> None:
    by_hand = answers_by_hand(None, A, B), answers_by_hand(SAMPLES, A, B), history_by_hand(A, B, EXPLORATION)
    planned = simulated(WHOLE), simulated(SCREENED), simulated(HISTORY)
    rows = [
        ("Answers a trained group, whole groups", by_hand[0], planned[0]),
        (f"Answers a trained group, k={SAMPLES}", by_hand[1], planned[1]),
        ("Answers a trained group, history at the second visit", by_hand[2], planned[2]),
        ("With screening over without", by_hand[1] / by_hand[0], planned[1] / planned[0]),
        ("With history over without", by_hand[2] / by_hand[0], planned[2] / planned[0]),
    ]
    table = pd.DataFrame(rows, columns=["n=16, Beta(0.2, 0.6)", "By hand", "Planner"]).round(3)
    table["Planner over by hand"] = (table["Planner"] / table["By hand"]).round(3)
    FOLDER.mkdir(parents=True, exist_ok=True)
    table.to_csv(FOLDER / "reference.csv", index=False)
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
