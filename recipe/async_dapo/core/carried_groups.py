"""Valid groups beyond the B of a step: trained first in a later one, those of the oldest policy in front."""

from collections.abc import Iterable, Set

from .pool_records import CarriedGroup
from .staleness import StalenessLimit
from .trajectory import PromptGroup


class CarriedGroups:
    """In the order in which they are trained."""

    def __init__(self, groups: Iterable[CarriedGroup] = ()) -> None:
        self._groups = list(groups)

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(carried.uid for carried in self._groups)

    @property
    def groups(self) -> tuple[CarriedGroup, ...]:
        return tuple(self._groups)

    def add(self, groups: Iterable[CarriedGroup]) -> None:
        self._groups.extend(groups)
        self._groups.sort(key=lambda carried: carried.oldest_version)  # stable: oldest policy first

    def take(self, count: int) -> list[CarriedGroup]:
        """The first `count`."""
        taken, self._groups = self._groups[:count], self._groups[count:]
        return taken

    def too_stale(self, limit: StalenessLimit, step: int) -> list[PromptGroup]:
        """Those of which no token could be trained on any more."""
        return [carried.group for carried in self._groups if limit.is_too_stale(carried.newest_version, step)]

    def give_up(self, uids: Set[str]) -> int:
        """Returns the tokens that are thrown away with them."""
        lost_tok = sum(carried.generated_tok for carried in self._groups if carried.uid in uids)
        self._groups = [carried for carried in self._groups if carried.uid not in uids]
        return lost_tok
