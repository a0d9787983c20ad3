"""Prompts that were drawn and put off: each is drawn again before long, and counted once."""

from collections.abc import Sequence

from .trajectory import PromptGroup


class DeferredPrompts:
    """Fresh groups that wait until the step that they name."""

    def __init__(self, groups: Sequence[PromptGroup] = ()) -> None:
        self.groups = tuple(groups)

    def take_in(self, drawn: Sequence[PromptGroup], deferred: Sequence[PromptGroup]) -> tuple[list[PromptGroup], int]:
        """Sort the prompts of a draw. One that is deferred already, from an earlier visit, is the same prompt: it goes
        on waiting, or is drawn now, once.

        Returns:
            The groups that are drawn now, and how many groups are new.
        """
        earlier = {group.key: group for group in self.groups}
        drawn_now = [earlier.pop(group.key, group) for group in drawn]
        later: dict[str, PromptGroup] = {}
        for group in deferred:
            if group.key not in earlier:
                later.setdefault(group.key, group)
        self.groups = (*earlier.values(), *later.values())
        return drawn_now, sum(now is group for now, group in zip(drawn_now, drawn, strict=True)) + len(later)

    def take_due(self, step: int) -> list[PromptGroup]:
        """Those whose step has come."""
        due = [group for group in self.groups if group.deferred_until <= step]
        self.groups = tuple(group for group in self.groups if group.deferred_until > step)
        return due
