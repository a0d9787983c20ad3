"""Which replica gets new weights when, if engines never stop together.

    join -> UPDATING --updated--> SERVING --its turn--> UPDATING --updated--> SERVING ...
                                     |                      ^
                                     +-----> DRAINING ------+  nothing in flight; where a trajectory keeps its version

A few replicas are out at a time, those with the oldest weights first, and of these the ones with the fewest requests;
the others go on. While generation is stopped, all are updated at once. One that has missed versions gets the newest.
One that hangs is given up, as if it had died, and may join again.

Pure state machine: events change it, `moves` says what is to be done then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

OUT_SHARE = 1 / 8  # of the replicas that are alive, that take no requests at a time; at least one


class Phase(StrEnum):
    SERVING = "serving"  # takes requests
    DRAINING = "draining"  # takes none; those that it has go on to their end
    UPDATING = "updating"  # takes none; what it has is interrupted, and goes on under the new weights


@dataclass(slots=True)
class _Replica:
    version: int  # of its weights
    phase: Phase
    target: int  # version that it is getting, or has got
    has_joined: bool = False  # it has served, or does


class RollingUpdate:
    """The replicas of a run, their policy versions, and whose turn it is.

    Args:
        version: the newest so far.
        drains: a trajectory ends under the version that began it: a replica is updated when nothing is in flight there.
        max_lag: a replica more than this many versions behind gets no new requests, even if that exceeds the number of
            replicas updated at a time, and nothing waits for it; None = any.
    """

    def __init__(self, *, version: int, drains: bool, max_lag: int | None = None) -> None:
        self._newest = version
        self._drains = drains
        self._max_lag = max_lag
        self._replicas: dict[str, _Replica] = {}
        self._oldest = version  # that a request may have been sampled with that starts from now on

    @property
    def newest_version(self) -> int:
        return self._newest

    @property
    def oldest_version(self) -> int:
        """Whatever starts now gets no token of an older version. Never falls."""
        return self._oldest

    def version_of(self, replica_id: str) -> int:
        """Of its weights; -1 before it has any."""
        return self._replicas[replica_id].version

    def take_newest(self, replica_id: str) -> int:
        """The version that it is to get, now that it begins to: there may be a newer one than when its turn came."""
        replica = self._replicas[replica_id]
        replica.target = self._newest
        return replica.target

    def phase_of(self, replica_id: str) -> Phase | None:
        """None = it is not there."""
        replica = self._replicas.get(replica_id)
        return None if replica is None else replica.phase

    def publish(self, version: int) -> None:
        """The trainer has newer weights."""
        assert version > self._newest, f"version {version} after {self._newest}"
        self._newest = version

    def join(self, replica_id: str) -> None:
        """A replica without weights, which is to get the newest before any request."""
        assert replica_id not in self._replicas, f"{replica_id} is there already"
        self._replicas[replica_id] = _Replica(version=-1, phase=Phase.UPDATING, target=self._newest)

    def leave(self, replica_id: str) -> None:
        """It is dead, or is given up."""
        self._replicas.pop(replica_id, None)
        self._note_oldest()

    def updated(self, replica_id: str) -> Phase | None:
        """It has the weights that it was to get. Returns its next phase: it serves, unless all others have gone on to
        newer ones meanwhile, which it gets first. None if it has left.
        """
        replica = self._replicas.get(replica_id)
        if replica is None:
            return None
        replica.version = replica.target
        if replica.version < self._oldest or self._is_too_far_behind(replica):
            return self._update(replica)
        replica.phase, replica.has_joined = Phase.SERVING, True
        return replica.phase

    def moves(self, inflight: Mapping[str, int], *, is_stopped: bool = False) -> dict[str, Phase]:
        """The replicas that go on to another phase now, and that phase; each is told once.

        Args:
            inflight: requests of each replica.
            is_stopped: no replica generates.
        """
        result = {
            key: self._update(replica)
            for key, replica in self._replicas.items()
            if replica.phase is Phase.DRAINING and not inflight.get(key, 0)
        }
        joined = [one for one in self._replicas.values() if one.has_joined]
        out = [one for one in joined if one.phase is not Phase.SERVING and not self._is_too_late(one)]
        left = (len(joined) if is_stopped else max(1, int(OUT_SHARE * len(joined)))) - len(out)
        for key in sorted(self._behind(), key=lambda key: (self._replicas[key].version, inflight.get(key, 0))):
            replica = self._replicas[key]
            if left <= 0 and not self._is_too_far_behind(replica):
                continue
            left -= 1
            if self._drains and inflight.get(key, 0):
                replica.phase = result[key] = Phase.DRAINING
            else:
                result[key] = self._update(replica)
        self._note_oldest()
        return result

    def _behind(self) -> list[str]:
        return [key for key, one in self._replicas.items() if one.phase is Phase.SERVING and one.version < self._newest]

    def _is_too_far_behind(self, replica: _Replica) -> bool:
        return self._max_lag is not None and self._newest - replica.version > self._max_lag

    def _is_too_late(self, replica: _Replica) -> bool:
        """What it is getting has become too old meanwhile: it will get newer ones before it serves."""
        lag = self._newest - replica.target
        return self._max_lag is not None and replica.phase is Phase.UPDATING and lag > self._max_lag

    def _update(self, replica: _Replica) -> Phase:
        replica.phase, replica.target = Phase.UPDATING, self._newest
        return replica.phase

    def _note_oldest(self) -> None:
        """Of the replicas that serve, or will without being updated again."""
        coming = [
            one.target
            for one in self._replicas.values()
            if one.has_joined and one.phase is not Phase.DRAINING and not self._is_too_late(one)
        ]
        self._oldest = max(self._oldest, min(coming, default=self._oldest))
