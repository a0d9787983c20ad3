"""What a validation that stops the training costs, and what it would cost as ordinary work of the rounds that follow:

    python -m benchmarks.evaluation [--output outputs/evaluation]

Steps are those of the defaults in the simulated grid (`assets/defaults/one_update`); the validation is simulated here:
all its answers at once on empty engines, until the last has ended. Writes `costs.csv`, a row for each setting and
`trainer.test_freq`.
"""

import argparse
from pathlib import Path

import pandas as pd

from benchmarks.support.tables import markdown
from recipe.async_dapo_lab.command_line import path

from .run import costs

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--output", type=path, default=Path("outputs", "evaluation"))

if __name__ == "__main__":
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    rows = pd.DataFrame(costs())
    rows.to_csv(options.output / "costs.csv", index=False)
    print(markdown(rows))
