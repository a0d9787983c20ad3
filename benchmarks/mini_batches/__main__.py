"""Work of the busiest training rank over the mean, update by update: `python -m benchmarks.mini_batches`.

Response lengths are log-normal, work is verl's estimate for attention and matrix products. No training is run.
"""

import argparse
from functools import partial

import numpy as np
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from recipe.async_dapo.core.mini_batches import balanced_order, imbalance

equal_parts = partial(get_seqlen_balanced_partitions, equal_size=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Imbalance of each update, by verl's cut of a step and by this recipe's."
    )
    parser.add_argument("--ranks", type=int, default=8, help="data-parallel training ranks; 8")
    parser.add_argument("--groups", type=int, default=512, help="data.train_batch_size; 512")
    parser.add_argument("--mini", type=int, default=32, help="actor.ppo_mini_batch_size; 32")
    parser.add_argument("--n", type=int, default=16, help="trajectories of a group; 16")
    parser.add_argument("--limit", type=int, default=16_384, help="longest response [tokens]; 16384")
    parser.add_argument("--seed", type=int, default=0, help="of the lengths; 0")
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    lens_tok = np.minimum(rng.lognormal(np.log(4_000), 0.9, args.groups * args.n), args.limit).astype(int)
    work = calculate_workload(lens_tok).tolist()
    keys = [f"{group:06d}_{member:03d}_0" for group in range(args.groups) for member in range(args.n)]
    rows = {"ranks": args.ranks, "rows": args.mini * args.n}
    orders = {
        "verl": [row for part in equal_parts(work, args.ranks) for row in part],
        "recipe": balanced_order(keys, work, [False] * len(keys), **rows, partition=equal_parts),
    }
    for name, order in orders.items():
        found = imbalance(order, work, **rows)
        print(f"{name:6}  mean {np.mean(found):.3f}  of each update {' '.join(f'{value:.2f}' for value in found)}")


main()
