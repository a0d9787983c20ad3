"""Turns that go on from each other are one row: a tree of answers, whose leaves are the rows that are trained.

    request 1 ----- answer 1 --- tool's result --- answer 2          a row: both answers
                        \\------- other words ------ answer 3         a row: answer 3, behind answer 1 as context
    sub-agent ----- answer 4                                         a row

A request goes on from the answer whose messages are the longest beginning of its own. Compared is what messages mean,
not how a client writes them. What was sampled is never made tokens of again: only what is new is rendered behind it, by
verl's continuous-token builders. A request that continues no answer, or whose new messages a builder cannot append,
begins a new chain.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..gateway.conversation import Answer, Conversation, Row, aside
from ..gateway.messages import Message, meaning
from ..gateway.template import Builder
from .closing import ClosedTemplate
from .template_trial import differences


@dataclass(slots=True, eq=False, kw_only=True)
class Link(Answer):
    """One turn, and what it goes on from.

    Attributes:
        context_ids: rendered, behind the parent.
        new: meanings of the messages of its request that are behind the parent's.
        taken_back_tok: tokens at the parent's end that the template has in another place, or not at all.
        known_by: meanings by which a client's message is known as this answer.
    """

    parent: "Link | None" = None
    tools: str
    new: list[str]
    taken_back_tok: int = 0
    known_by: frozenset[str] = frozenset()
    children: "list[Link]" = field(default_factory=list)
    held_prompt: list[int] | None = None  # only at the end of a chain: a long history is held once, not for each turn

    @property
    def path(self) -> "list[Link]":
        """From the first answer of its chain to itself."""
        path = [self]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        return path[::-1]

    @property
    def prompt_ids(self) -> list[int]:
        if (held := self.held_prompt) is not None:  # read once: it is let go while another thread renders
            return held
        ids = list[int]()
        for answer in self.path:
            if answer.parent is not None:
                ids += answer.parent.token_ids
            del ids[len(ids) - answer.taken_back_tok :]
            ids += answer.context_ids
        return ids

    @property
    def root_tok(self) -> int:
        return len(self.path[0].context_ids)


class Chains(Conversation):
    """All answers of a session, in chains."""

    _template: ClosedTemplate
    answers: list[Link]  # type: ignore[assignment]

    def __init__(self, builder: Builder, **options: Any) -> None:
        super().__init__(builder, **options)
        self._roots: list[Link] = []

    @classmethod
    def template_of(cls, builder: Builder, tokenizer: Any) -> ClosedTemplate:
        return ClosedTemplate.closed(builder, tokenizer)

    @classmethod
    def warnings(cls, builder: Builder, tokenizer: Any) -> list[str]:
        found = differences(builder, tokenizer).items()
        words = "the tokens of a chain differ from those of a full rendering"
        return [f"behind {what} {words}: {difference}" for what, difference in found]

    async def begin(self, messages: list[Message], said: list[str], tools: list[dict[str, Any]]) -> Link:
        key = json.dumps(tools, sort_keys=True)
        parent, known = self._longest(said, key)
        if parent is not None:
            # What the agent has written anew stays as it was sampled; its own words for it are not rendered.
            updated = [*parent.messages, *await self.shown(parent, messages[known:], said[known:])]
            try:
                prompt_ids, taken_back_tok = await aside(lambda: self._appended(parent, updated, tools))
            except Exception:  # of a template, or of a builder that does not know such an order of roles
                self.new_chains["not_appended"] += 1
            else:
                start = len(parent.prompt_ids) + len(parent.token_ids) - taken_back_tok
                parent.held_prompt = None
                return Link(
                    prompt_ids[start:],
                    updated,
                    parent=parent,
                    tools=key,
                    new=said[known:],
                    taken_back_tok=taken_back_tok,
                    held_prompt=prompt_ids,
                )
        elif self.answers:
            self.new_chains["other_tools" if self._longest(said, None)[0] else "other_history"] += 1
        shown = await self.shown(None, messages, said)
        return Link(await self.rendered(shown, tools), shown, tools=key, new=said)

    def _appended(self, parent: Link, updated: list[Message], tools: list[dict[str, Any]]) -> tuple[list[int], int]:
        """The prompt that goes on from an answer, and how many tokens of that one's end the template takes back."""
        closing_ids = self._template.closing_of(parent.token_ids)
        before = parent.all_ids + closing_ids
        merged = self._builder.merge_context_tokens(parent.messages, updated, before, tools=tools or None)
        kept_tok = len(before) - merged.removed_prefix_token_count
        prompt_ids = list(merged.token_ids)
        if prompt_ids[:kept_tok] != before[:kept_tok]:
            raise ValueError("the builder has changed tokens that were sampled")
        return prompt_ids, max(0, merged.removed_prefix_token_count - len(closing_ids))

    def end(self, answer: Link, message: Message) -> None:
        super().end(answer, message)
        answer.known_by = meanings_of_reply(message, self._written)
        (self._roots if answer.parent is None else answer.parent.children).append(answer)

    def _longest(self, said: Sequence[str], tools: str | None) -> tuple[Link | None, int]:
        """The answer that is the longest beginning of these messages, the latest of several, and its length with all
        before it [messages]. `tools`: None for any."""
        best: tuple[Link | None, int] = (None, 0)
        open_ends = [(root, 0) for root in self._roots]
        while open_ends:
            answer, start = open_ends.pop()
            end = start + len(answer.new)
            is_beginning = end < len(said) and said[end] in answer.known_by and said[start:end] == answer.new
            if not is_beginning or tools not in (None, answer.tools):
                continue
            if end + 1 < len(said) and end + 1 > best[1]:  # the last pushed, so the latest, comes first
                best = (answer, end + 1)
            open_ends += [(child, end + 1) for child in answer.children]
        return best

    def rows(self) -> Iterator[Row]:
        """A row for each leaf, in the order of their ends. An answer is trained in the first row that has it. Those at
        an end that no client has had are in no row.
        """
        trained: set[int] = set()
        for leaf in self._leaves():
            path, new, rolled_back_tok = leaf.path, list[Answer](), 0
            ids, mask, log_probs = list[int](), list[int](), list[float]()
            for answer in path:
                if (parent := answer.parent) is not None:
                    for tokens in (ids, mask, log_probs):
                        del tokens[len(tokens) - answer.taken_back_tok :]
                    if any(parent is one for one in new):
                        rolled_back_tok += min(answer.taken_back_tok, len(parent.token_ids))
                    ids += answer.context_ids
                    mask += [0] * len(answer.context_ids)
                    log_probs += [0.0] * len(answer.context_ids)
                is_new = id(answer) not in trained
                new += [answer] if is_new else []
                trained.add(id(answer))
                ids += answer.token_ids
                mask += [int(is_new)] * len(answer.token_ids)
                log_probs += answer.log_probs if is_new else [0.0] * len(answer.token_ids)
            yield Row(
                last=leaf,
                prompt_ids=path[0].context_ids,
                response_ids=ids,
                mask=mask,
                log_probs=log_probs,
                trained=new,
                rolled_back_tok=rolled_back_tok,
            )

    def _leaves(self) -> list[Link]:
        gone: set[int] = set()
        leaves: list[Link] = []
        for answer in reversed(self.answers):  # children ended after their parents
            is_leaf = all(id(child) in gone for child in answer.children)
            if is_leaf and not answer.is_heard:
                gone.add(id(answer))
            elif is_leaf:
                leaves.append(answer)
        return leaves[::-1]


def meanings_of_reply(message: Message, written: Callable[[str], str]) -> frozenset[str]:
    """Those by which a reply is known again: a client may leave out what the model has said beside its calls, whose ids
    are of this reply only.
    """
    silent = message | {"content": ""} if message.get("tool_calls") else message
    return frozenset({meaning(message, written), meaning(silent, written)})
