"""Published results against the simulator, with one set of constants: python -m benchmarks.plan.validate [--jobs 2]

Writes validation.csv, orders.csv and validation.png; `python -m docs.generate` makes tables of them.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor

import pandas as pd

from .published_claims import claims, orders
from .published_settings import cases, run
from .summary import FOLDER, TARGET


def draw(results: pd.DataFrame) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.27 * len(results) + 1.2), layout="constrained")
    axis = figure.subplots()
    colours = ["#6cc5b0" if abs(error) <= TARGET else "#ff725c" for error in results["error"]]
    axis.barh(results["source"] + ": " + results["what"], 100 * results["error"], color=colours)
    axis.axvspan(-100 * TARGET, 100 * TARGET, color="#6cc5b0", alpha=0.15)
    axis.axvline(0, color="black", lw=0.8)
    axis.invert_yaxis()
    axis.set_xlabel(f"simulated over published, error [%]; shaded: the target of {100 * TARGET:.0f} %")
    axis.tick_params(labelsize=8)
    figure.savefig(FOLDER / "validation.png", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    runs = cases()
    with ProcessPoolExecutor(max_workers=parser.parse_args().jobs) as pool:
        means = dict(zip(runs, pool.map(run, runs.values()), strict=True))
    results = pd.DataFrame(
        {
            "source": claim.source,
            "what": claim.what,
            "published": claim.published,
            "simulated": float(f"{claim.value(*(means[name] for name in claim.cases)):.4g}"),
        }
        for claim in claims()
    )
    results["error"] = results["simulated"] / results["published"] - 1
    results.round({"error": 3}).to_csv(FOLDER / "validation.csv", index=False)
    pd.DataFrame(orders(means), columns=["claim", "holds"]).to_csv(FOLDER / "orders.csv", index=False)
    draw(results)


if __name__ == "__main__":
    main()
