"""What it costs to deliver a request's tokens in pieces: CPU of both ends of the calls that bring them, over real Ray.

python -m benchmarks.front_end.pieces --tokens 8192 --pieces 64 128 512 2048 8192 --repetitions 5

Writes `pieces.csv`: microseconds of CPU per token, server and client together, medians over the repetitions. A piece of
all tokens is a delivery at the end. What the engine does is not in it.
"""

import argparse
import asyncio
import statistics
import time
from pathlib import Path

import pandas as pd
import ray
from verl.workers.rollout.replica import TokenOutput

from recipe.async_dapo.engines.protocol import MORE, OutputExtra, make_output

REQUESTS = 32  # at once


class Server:
    """Delivers at once whatever is asked for."""

    async def reattach(self, length_tok: int) -> TokenOutput:
        extra = OutputExtra(global_steps=0, segments=[(0, length_tok)], finish_reason=None, load=None)
        return make_output(list(range(length_tok)), [-0.5] * length_tok, stop_reason=MORE, extra=extra)

    async def cpu_s(self) -> float:
        return time.process_time()


async def fetch(server: ray.actor.ActorHandle, length_tok: int, piece_tok: int) -> None:
    """One request."""
    left_tok = length_tok
    while left_tok:
        piece = await server.reattach.remote(min(piece_tok, left_tok))
        left_tok -= len(piece.token_ids)


async def cpu_us_per_token(server: ray.actor.ActorHandle, length_tok: int, piece_tok: int) -> float:
    servers_s, own_s = await server.cpu_s.remote(), time.process_time()
    async with asyncio.TaskGroup() as requests:
        for _ in range(REQUESTS):
            requests.create_task(fetch(server, length_tok, piece_tok))
    spent_s = await server.cpu_s.remote() - servers_s + time.process_time() - own_s
    return 1e6 * spent_s / (REQUESTS * length_tok)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192, help="of a response")
    parser.add_argument("--pieces", type=int, nargs="+", default=[64, 128, 512, 2048, 8192])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("outputs", "front_end"))
    options = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    server = ray.remote(num_cpus=0, max_concurrency=REQUESTS)(Server).remote()
    asyncio.run(cpu_us_per_token(server, options.tokens, 64))  # warms up
    costs: dict[int, list[float]] = {piece_tok: [] for piece_tok in options.pieces}
    for _ in range(options.repetitions):
        for piece_tok, seen in costs.items():
            seen.append(asyncio.run(cpu_us_per_token(server, options.tokens, piece_tok)))
    ray.shutdown()
    rows = [
        {"tokens": options.tokens, "piece_tok": piece_tok, "cpu_us_per_token": round(statistics.median(seen), 3)}
        for piece_tok, seen in costs.items()
    ]
    options.output.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(options.output / "pieces.csv", index=False)
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
