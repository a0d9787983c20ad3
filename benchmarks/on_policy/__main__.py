"""Whether steps without old tokens can be faster; simulated, never run: python -m benchmarks.on_policy

Rows of `runs.csv`: verl's sync mode, strategies that train on nothing old or on one version, and two ideas that this
recipe does not have. What the file has is not simulated again.

`history`: of the groups drawn together, those start first whose answers were long at an earlier visit; the recipe does
so where groups that were interrupted start again. `longest first`: the same for other strategies, by a prompt's own
mean, which a visit would tell at best.

`tail rounds` (RollPacker, arXiv:2509.21009): a short round starts more groups than it needs, and its first B valid ones
end it; the others move to a line of their own, are generated again from the start, and train in a round of long groups
as soon as there are enough. A number is how many times more groups a short round starts than are expected to be needed.
"""

import argparse
from functools import partial
from pathlib import Path

from benchmarks.defaults.settings import SETTINGS
from benchmarks.support.runs_file import RunsFile
from benchmarks.support.tables import markdown

from .run import CLUSTERS, measure, rows, summary

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--clusters", nargs="+", choices=CLUSTERS, default=list(CLUSTERS))
parser.add_argument("--systems", nargs="+", default=[""], metavar="TEXT", help="how names begin; default: all")
parser.add_argument("--output", type=Path, default=Path("outputs", "on_policy"), help="of runs.csv")

if __name__ == "__main__":
    options = parser.parse_args()
    file = RunsFile(options.output / "runs.csv")
    for cluster in options.clusters:
        setting = next(one for one in SETTINGS if str(one).startswith(cluster))
        for correlation, name, start in rows(setting):
            if not name.startswith(tuple(options.systems)):
                continue
            cell = {"setting": str(setting), "correlation": correlation, "system": name}
            file.measure(cell, partial(measure, setting, correlation, start))
    print(markdown(summary(options.output)))
