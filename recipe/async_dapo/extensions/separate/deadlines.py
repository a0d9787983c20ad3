"""Which groups may begin, and when a batch may be handed over, so that no token is ever too stale: where rounds have no
end, and groups begin while the trainer trains.

A group that begins under version v has to be in the batch of step v + 1 + max_staleness at the latest. Each step has
room for B groups; so of those that begin up to any version, no more may be on their way than their steps have room for.
That holds when a group begins, and is kept: a batch takes the oldest groups, and waits for one that runs if the steps
after it would not have the room. Each of those comes to an end, so no batch waits for ever; what a checkpoint of a
looser limit brings beyond that is handed over late, and its tokens are left out of the loss.
"""

from collections import Counter, OrderedDict
from itertools import accumulate


class Deadlines:
    """Prompt groups from their first token to the batch that they are trained in.

    Args:
        target_valid_groups: B [groups].
        max_staleness: of any trained token [versions]; None = no limit.
        step: whose batch is collected first.
    """

    def __init__(self, *, target_valid_groups: int, max_staleness: int | None, step: int = 1) -> None:
        self._target = target_valid_groups
        self._max_staleness = max_staleness
        self._began_under: dict[str, int] = {}  # of groups on their way
        self._on_their_way: Counter[int] = Counter()  # the same, counted
        self._valid: OrderedDict[str, None] = OrderedDict()  # of these: may be trained; in the order they have ended
        self._handed_over = (step - 1) * target_valid_groups

    def __contains__(self, uid: str) -> bool:
        return uid in self._began_under

    @property
    def step(self) -> int:
        """Whose batch is being collected."""
        return 1 + self._handed_over // self._target

    @property
    def num_running(self) -> int:
        """Groups that have begun and not ended."""
        return len(self._began_under) - len(self._valid)

    def may_begin(self, version: int) -> bool:
        """Whether one more group can be trained in time.

        Args:
            version: the oldest that may sample a token of it.
        """
        if self._max_staleness is None:
            return True
        more = self._on_their_way + Counter([version])
        return self._last_step(version) >= self.step and self._has_room(more, handed_over=self._handed_over)

    def begin(self, uid: str, version: int) -> None:
        self._began_under[uid] = version
        self._on_their_way[version] += 1

    def end(self, uid: str, *, is_valid: bool) -> None:
        """It can be trained on, or never will be."""
        if is_valid:
            self._valid[uid] = None
        else:
            self._remove(uid)

    def next_batch(self) -> list[str] | None:
        """The B groups to train on next, the oldest first; None if they are fewer, or if some that run have to be among
        them.
        """
        if len(self._valid) < self._target:
            return None
        taken = sorted(self._valid, key=self._began_under.__getitem__)[: self._target]
        left = self._on_their_way - Counter(self._began_under[uid] for uid in taken)
        if self._max_staleness is None or not self.num_running:
            return taken
        return taken if self._has_room(left, handed_over=self._handed_over + self._target) else None

    def hand_over(self) -> list[str]:
        """Take `next_batch`."""
        taken = self.next_batch()
        assert taken is not None, "a batch is handed over when there is one"
        self._handed_over += self._target
        for uid in taken:
            del self._valid[uid]
            self._remove(uid)
        return taken

    def _remove(self, uid: str) -> None:
        version = self._began_under.pop(uid)
        self._on_their_way[version] -= 1
        if not self._on_their_way[version]:
            del self._on_their_way[version]

    def _has_room(self, groups: Counter[int], *, handed_over: int) -> bool:
        """Whether all of them can be trained in time, if all turn out valid, but those that are late already."""
        versions = sorted(groups)
        so_far = accumulate(groups[version] for version in versions)
        return all(
            count <= last * self._target - handed_over
            for count, last in zip(so_far, map(self._last_step, versions), strict=True)
            if last >= self.step
        )

    def _last_step(self, version: int) -> int:
        """That may train on tokens of this version."""
        assert self._max_staleness is not None
        return version + 1 + self._max_staleness
