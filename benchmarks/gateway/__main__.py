"""Measures what the gateway costs on this machine: python -m benchmarks.gateway"""

import argparse
import asyncio
from pathlib import Path

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("outputs/gateway/costs.csv"))
    file = parser.parse_args().output
    from benchmarks.gateway.measure import measure  # not before the arguments are read: a copy may have no gateway

    costs = asyncio.run(measure())
    file.parent.mkdir(parents=True, exist_ok=True)
    costs.to_csv(file, index=False, float_format="%.2f")
    print(costs.round(2).to_string(index=False))
