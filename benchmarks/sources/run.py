"""What a mix of data sets comes to: 200 steps of strategies and stop rules in virtual time, a row for each source."""

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.values import ConfigError, RolloutStrategy
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.extensions.shares.mix import SourceMix
from recipe.async_dapo.extensions.sources.accounts import Accounts
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.systems import System, async_dapo_2025, recipe

from .mix import AS_DRAWN, FILE, MIXES, SETTING, THREE, TWO, scenario

STEPS, FIRST = 200, 20
YEAR_2025 = "2025's recipe"
HOST_GIB = 128  # a GPU, more than any KV cache here
BALANCED, EQUAL = "balanced", "equal"  # beside `AS_DRAWN`; the last one: named, all alike


class Cell(NamedTuple):
    """What is simulated."""

    mix: str
    strategy: str
    stop_rule: StopRuleName
    sources: str

    @property
    def system(self) -> System:
        options: dict[str, Any] = {"rollout_strategy": self.strategy, "stop_rule": self.stop_rule.value}
        if self.strategy == RolloutStrategy.PARTIAL_STALE_KV:
            options["host_kv_gib"] = HOST_GIB
        system = recipe(f"{self.strategy}, {self.stop_rule}", **options)
        if self.strategy == YEAR_2025:
            system = async_dapo_2025(over_sampling=2 * SETTING["train_batch_size"])
        # A source of which one group in sixteen is valid takes more than ten batches of its share.
        return system.with_overrides({"algorithm.filter_groups.max_num_gen_batches": 0})

    @property
    def wanted(self) -> dict[str, Fraction]:
        """Shares of the batch by source."""
        mix = MIXES[self.mix]
        if self.sources == EQUAL:
            return {one.name: Fraction(1, len(mix)) for one in mix}
        return {one.name: Fraction(str(one.share)) for one in mix}


def cells() -> Iterator[Cell]:
    """All strategies and rules with three sources; with two, and with shares, those that differ most."""
    partial = RolloutStrategy.PARTIAL, StopRuleName.FIRST_COMPLETED
    discard = RolloutStrategy.DISCARD, StopRuleName.FIFO
    for mix, system in ((THREE, partial), (THREE, discard), (TWO, partial)):
        for sources in (AS_DRAWN, BALANCED, EQUAL):
            yield Cell(mix, *system, sources)
    for strategy, rule in product(RolloutStrategy, StopRuleName):
        yield Cell(THREE, strategy, rule, AS_DRAWN)
    for strategy, rule in product((RolloutStrategy.PARTIAL, RolloutStrategy.DISCARD), StopRuleName):
        yield Cell(TWO, strategy, rule, AS_DRAWN)
    for mix in MIXES:  # whatever was interrupted is lost
        yield Cell(mix, YEAR_2025, StopRuleName.FIRST_COMPLETED, AS_DRAWN)


def run(folder: Path, *, steps: int, say: Callable[[str], None]) -> None:
    """Simulate what the file does not have yet."""
    file = RunsFile(folder / FILE)
    for cell in cells():
        if not file.has(**cell._asdict()):
            for row in measure(cell, steps=steps):
                file.add(cell._asdict() | row)
            say(", ".join(cell))


def source_mix(shares: Mapping[str, Fraction], options: AsyncDAPOConfig, *, carries: bool) -> SourceMix:
    """As `SharedSource` makes it."""
    mix = SourceMix(
        options.over_sampling(),
        carries=carries,
        begins_ahead=options.mixes_versions and not options.drains,
    )
    mix.begin(shares)
    return mix


def measure(cell: Cell, *, steps: int) -> list[dict[str, Any]]:
    """A row for each source; one with the reason where the recipe refuses the options."""
    setting, accounts = scenario(MIXES[cell.mix]), Accounts()
    seconds, generated_tok, drawn, trained = [], [], [], []
    try:
        mix = None
        if cell.sources != AS_DRAWN:
            options = cell.system.options(setting)
            mix = source_mix(cell.wanted, options, carries=cell.sources == BALANCED)
        training = TrainingRun(setting, cell.system, mix=mix, watches=[accounts])
        for _ in range(steps):
            step = training.step()
            seconds.append(step.step_s)
            generated_tok.append(step.generated_tok)
            figures = accounts.take()
            drawn.append({source: own["drawn"] for source, own in figures.items()})
            trained.append({source: own["trained"] for source, own in figures.items()})
    except ConfigError as error:
        return [{"refused": str(error)}]
    valid = {one.name: one.share * one.valid_share for one in MIXES[cell.mix]}
    return [
        {
            "source": source,
            "wanted": round(float(share), 4),
            "valid_share": round(valid[source] / sum(valid.values()), 4),  # of the valid groups among all prompts
            "drawn_first": round(_share(drawn, source, 0, FIRST), 4),
            "trained_first": round(_share(trained, source, 0, FIRST), 4),
            "drawn_steady": round(_share(drawn, source, FIRST, steps), 4),
            "trained_steady": round(_share(trained, source, FIRST, steps), 4),
            # Of any twenty steps in a row, the farthest from what is wanted.
            "farthest": round(
                max(abs(_share(trained, source, end - FIRST, end) - float(share)) for end in range(FIRST, steps + 1)),
                4,
            ),
            "step_s": round(fmean(seconds[FIRST:]), 1),
            "generated_tok": round(fmean(generated_tok[FIRST:])),
            "refused": "",
        }
        for source, share in cell.wanted.items()
    ]


def _share(counts: list[dict[str, float]], source: str, begin: int, end: int) -> float:
    """Of a source, in what came to the counts in the steps from `begin` to `end` [0-1]."""
    before, after = counts[begin - 1] if begin else {}, counts[end - 1]
    added = {name: count - before.get(name, 0) for name, count in after.items()}
    return added.get(source, 0) / sum(added.values())
