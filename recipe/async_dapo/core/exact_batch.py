"""Invariant 3: a step trains on exactly B groups of exactly n trajectories."""

from collections.abc import Collection


class InexactBatch(RuntimeError):
    """A batch has other trajectories than those of the groups that were chosen."""


def check_batch(keys: Collection[str], uids: Collection[str], *, groups: int, n: int) -> None:
    """
    Args:
        keys: of the batch's outputs, `{uid}_{session}_{output}`; a trajectory has one or more.
        uids: of the groups that were chosen.

    Raises:
        InexactBatch: if they are not B groups of n.
    """
    sessions = {tuple(key.rsplit("_", 1)[0].split("_")) for key in keys}
    expected = {(uid, str(session)) for uid in uids for session in range(n)}
    if sessions != expected or len(uids) != groups:
        raise InexactBatch(f"batch is not {groups} groups of {n}: {len(uids)} groups, {len(sessions)} sessions")
