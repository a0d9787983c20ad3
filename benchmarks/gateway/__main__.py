"""Measures what the gateway costs on this machine: python -m benchmarks.gateway"""

import argparse
import asyncio
from pathlib import Path

from benchmarks.support.needed import need
from recipe.async_dapo_lab.command_line import path

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=path, default=Path("outputs/gateway/costs.csv"))
    file = parser.parse_args().output
    need("agents", "gateway", "http", "agent_programs", "chains", "chat_completions")
    from benchmarks.gateway.measure import measure

    costs = asyncio.run(measure())
    file.parent.mkdir(parents=True, exist_ok=True)
    costs.to_csv(file, index=False, float_format="%.2f")
    print(costs.round(2).to_string(index=False))
