"""`async_dapo.sources`: prompts of one data source at a time, each source in an order of its own.

A source whose groups are rarely valid needs more prompts than its share of the data, another one fewer: the data
loader's order, which mixes them, would leave ever more prompts of the others behind. So each source is gone through by
itself, shuffled anew in each pass.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import TYPE_CHECKING

from ...config.options import AsyncDAPOConfig
from ...config.values import BALANCED, ConfigError
from ...core.mix import ALL, Mix
from ...core.over_sampling import OverSampling
from ...core.staleness import VersionShares
from ...core.trajectory import PromptGroup
from ...rollout.manager import RoundRecord
from ...training.checkpoints import from_bytes, to_bytes
from ...training.source import Source
from .mix import SharesState, SourceMix
from .named_shares import OPTION, check_batch, check_names, named_shares, whole
from .rows import Rows

if TYPE_CHECKING:
    from ...training.run_trainer import RunTrainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadState:
    """What a checkpoint keeps."""

    shares: SharesState
    read: dict[str, int]  # prompts drawn of each source


def order(rows: Sequence[int], *, source: str, number: int, seed: int | None) -> list[int]:
    """Of a source's rows in one pass.

    Args:
        number: of the pass, from 0.
        seed: None = as they are in the data.
    """
    if seed is None:
        return list(rows)
    return Random(f"{seed}/{source}/{number}").sample(list(rows), len(rows))


class SharedSource(Source):
    """Draws so many prompts of each data source as its share of the batch takes.

    Args:
        source: verl's data loader, past which rows are drawn. A run that goes on from a checkpoint, and has no shares
            now, draws from it.
    """

    _data: Rows

    def __init__(self, options: AsyncDAPOConfig, source: Source) -> None:
        self._options, self._loader = options, source
        self._rows: dict[str, list[int]] = {}
        self._read: dict[str, int] = {}
        self._passes: dict[str, tuple[int, list[int]]] = {}  # that each is in, by its number
        self._mix: SourceMix | None = None
        self._kept = b""  # of a checkpoint, in a run without shares
        self._told: set[str] = set()  # sources without a share whose held groups the log has told of

    @property
    def held(self) -> int:
        return self._loader.held

    def mix(self, over_sampling: OverSampling) -> Mix:
        options = self._options
        self._mix = SourceMix(
            over_sampling,
            carries=options.sources == BALANCED,
            begins_ahead=options.mixes_versions and not options.drains,
        )
        return self._mix

    def begin(self, trainer: "RunTrainer") -> None:
        self.begin_with(Rows(trainer))

    def begin_with(self, data: Rows) -> None:
        """
        Raises:
            ConfigError: for shares of other sources than those of these data.
        """
        self._data, sources = data, data.sources
        if sources is None:
            remedy = "the data set holds no table with the column data_source; use verl's own, or leave it null"
            raise ConfigError(OPTION, self._options.sources, remedy)
        for row, name in enumerate(sources):
            self._rows.setdefault(name, []).append(row)
        assert self._mix is not None, "the mix is asked for before the data are loaded"
        self._mix.begin(self._shares())

    def _shares(self) -> Mapping[str, Fraction]:
        asked, there = self._options.sources, self._rows
        if not isinstance(asked, dict):
            return whole({name: Fraction(len(rows)) for name, rows in there.items()})
        check_names(asked, there)
        check_batch(asked, self._options.target_valid_groups)
        shares = named_shares(asked)
        if unnamed := {name: len(rows) for name, rows in sorted(there.items()) if name not in shares}:
            logger.info("%s: prompts of sources that have no share are not drawn: %s", OPTION, unnamed)
        return shares

    def draw(self, count: int, step: int, part: str = ALL) -> list[PromptGroup]:
        if self._mix is None:
            return self._loader.draw(count, step, part)
        read = self._read.get(part, 0)
        drawn: list[int] = []
        while len(drawn) < count:
            number, place = divmod(read + len(drawn), len(self._rows[part]))
            drawn += self._pass(part, number)[place : place + count - len(drawn)]
        self._read[part] = read + count
        return self._data.pick(drawn)

    def _pass(self, source: str, number: int) -> list[int]:
        """Rows of a source in that pass; it is worked out once."""
        at, rows = self._passes.get(source, (-1, []))
        if at != number:
            rows = order(self._rows[source], source=source, number=number, seed=self._data.seed)
            self._passes[source] = number, rows
        return rows

    def closed(self, record: RoundRecord, versions: VersionShares) -> dict[str, float]:
        held = {} if self._mix is None else self._mix.without_share
        if held.keys() - self._told:
            logger.info("%s: groups of sources that have no share wait until they have one: %s", OPTION, held)
            self._told |= held.keys()
        return {}

    def state(self) -> bytes:
        return self._kept if self._mix is None else to_bytes(ReadState(shares=self._mix.state(), read=dict(self._read)))

    def restore(self, state: bytes) -> None:
        if self._mix is None:
            self._kept = state
            return
        held = from_bytes(ReadState, state)
        self._mix.restore(held.shares)
        self._read = {name: count for name, count in held.read.items() if name in self._rows}
