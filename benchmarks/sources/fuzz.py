"""Random options with sources, in virtual time: the account of each source closes, and each batch has its shares.

    python -m benchmarks.sources --fuzz 1000 [--output outputs/sources]

Writes `fuzz.csv`, a row for each kind of mix: how many runs, steps and groups, and how many the recipe refused.
"""

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.config.values import ConfigError, RolloutStrategy
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.extensions.sources.accounts import Accounts
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import System

from .mix import AS_DRAWN, Source, scenario
from .run import BALANCED, source_mix

NAMED = "named"
KEEPS_KV = "host_kv" in declared()  # an extension, which may be absent
STRATEGIES = [one for one in RolloutStrategy if KEEPS_KV or one is not RolloutStrategy.PARTIAL_STALE_KV]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One set of options, by chance."""

    mix: tuple[Source, ...]
    sources: str
    shares: dict[str, Fraction]
    inputs: dict[str, Any]
    overrides: dict[str, Any]
    steps: int

    @classmethod
    def of(cls, random: Random) -> "Drawn":
        names = [f"source {number}" for number in range(random.randint(1, 4))]
        parts = {name: Fraction(random.randint(1, 9)) for name in names}
        whole = sum(parts.values())
        mix = tuple(
            Source(
                name=name,
                share=float(parts[name] / whole),
                median_tok=random.choice((20, 100, 400)),
                valid_share=random.choice((0.1, 0.4, 0.9)),
            )
            for name in names
        )
        sources = random.choice((AS_DRAWN, BALANCED, NAMED))
        if sources == NAMED:
            parts = {name: Fraction(random.randint(1, 9)) for name in names[: random.randint(1, len(names))]}
        return cls(
            mix=mix,
            sources=sources,
            shares={name: part / sum(parts.values()) for name, part in parts.items()},
            inputs={
                "train_batch_size": random.randint(1, 9),
                "rollout_n": random.randint(2, 3),
                "max_response_length": 1000,
                "length_median_tok": 100.0,  # of no source
                "max_num_seqs": random.choice((2, 8, 64)),
                "seed": random.randint(0, 10**6),
            },
            overrides={
                "async_dapo.rollout_strategy": random.choice(STRATEGIES).value,
                "async_dapo.stop_rule": random.choice((*StopRuleName,)).value,
                "async_dapo.host_kv_gib": 1 if KEEPS_KV else None,
                "async_dapo.max_staleness": random.choice((None, 0, 1, 2, 4)),
                "async_dapo.max_partial_share": random.choice((None, None, 0.3)),
                "async_dapo.over_sampling_batch_size": random.choice(("auto", 1, 3, 20)),
                "async_dapo.rollout_pool_size": random.choice(("auto", None, 4)),
                "algorithm.filter_groups.max_num_gen_batches": 0,
            },
            steps=random.randint(2, 6),
        )

    def play(self) -> int:
        """Returns the groups that were drawn.

        Raises:
            LedgerError: where an account does not close.
            AssertionError: where a batch has other shares.
        """
        setting, system, accounts = (
            scenario(self.mix, **self.inputs),
            System(name="", overrides=self.overrides),
            Accounts(),
        )
        mix = None
        if self.sources != AS_DRAWN:
            mix = source_mix(self.shares, system.options(setting), carries=self.sources == BALANCED)
        training = TrainingRun(setting, system, mix=mix, watches=[accounts])
        before: Counter[str] = Counter()
        for _ in range(self.steps):
            targets = None if mix is None else Counter(mix.targets)
            training.step()
            trained = Counter({name: int(own["trained"]) for name, own in accounts.take().items()})
            assert targets is None or trained - before == +targets, (
                f"{trained - before}, where {targets} were due: {self}"
            )
            before = trained
        return training.pool.ledger.drawn


def play_all(runs: int, *, seed: int = 0) -> pd.DataFrame:
    rows = []
    for number in range(runs):
        drawn = Drawn.of(Random(f"{seed}/{number}"))
        row = {"sources": drawn.sources, "runs": 1, "refused": 0, "steps": drawn.steps, "drawn_groups": 0}
        try:
            row["drawn_groups"] = drawn.play()
        except ConfigError:
            row |= {"refused": 1, "steps": 0}
        rows.append(row)
    return pd.DataFrame(rows).groupby("sources").sum().reset_index()


def fuzz(folder: Path, *, runs: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    found = play_all(runs)
    found.to_csv(folder / "fuzz.csv", index=False)
    print(found.to_string(index=False))
