"""What an agent has said and heard, as exact token ids: a tree of answers, whose leaves are the rows that are trained.

    request 1 ----- answer 1 --- tool's result --- answer 2          a row: both answers
                        \\------- other words ------ answer 3         a row: answer 3, behind answer 1 as context
    sub-agent ----- answer 4                                         a row

A request goes on from the answer whose messages are the longest beginning of its own. Compared is what messages mean,
not how a client writes them. What was sampled is never made tokens of again: only what is new is rendered behind it, by
verl's continuous-token builders. A request that continues no answer, or whose new messages a builder cannot append,
begins a new chain.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .messages import Message, Refused, for_template, meaning, meanings_of_reply
from .template import Builder, Template

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Answer:
    """One turn, and what it goes on from.

    Attributes:
        new: meanings of the messages of its request that are behind the parent's.
        messages: those of its request as the template has been shown them, and, once it is known, its own.
        taken_back_tok: tokens at the parent's end that the template has in another place, or not at all.
        context_ids: rendered, behind the parent.
        digest: of its prompt, by which its turn is found in the record.
    """

    parent: "Answer | None"
    tools: str
    new: list[str]
    messages: list[Message]
    taken_back_tok: int
    context_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    digest: bytes = b""
    known_by: frozenset[str] = frozenset()
    is_heard: bool = False  # a client has had it
    children: "list[Answer]" = field(default_factory=list)
    extra_fields: dict[str, Any] = field(default_factory=dict)
    experts: Any = None
    held_prompt: list[int] | None = None  # only at the end of a chain: a long history is held once, not for each turn

    @property
    def path(self) -> "list[Answer]":
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
    def all_ids(self) -> list[int]:
        return self.prompt_ids + self.token_ids

    @property
    def root_tok(self) -> int:
        """Tokens before the first answer of its chain."""
        return len(self.path[0].context_ids)


Show = Callable[[Answer | None, list[Message], list[str]], Awaitable[list[Message]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A chain as it is trained: response, mask and log-probs have one entry a token."""

    last: Answer
    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    log_probs: list[float]
    trained: list[Answer]  # the answers that no earlier row has trained


class Conversation:
    """All answers of a session.

    Args:
        builder: renders messages, also behind tokens.
        template: what is known of the chat template.
        written: texts of messages, as they are compared.
        show: given what they are behind, new messages, and their meanings, returns those that are rendered in their
            place.
    """

    def __init__(
        self,
        builder: Builder,
        *,
        template: Template,
        written: Callable[[str], str] = str,
        show: Show | None = None,
    ) -> None:
        self._builder = builder
        self._template = template
        self._written = written
        self._show = show
        self._roots: list[Answer] = []
        self.answers: list[Answer] = []  # in the order of their ends
        self.new_chains: Counter[str] = Counter()  # by cause

    def meanings(self, messages: Sequence[Message]) -> list[str]:
        """What messages say, as it is compared."""
        return [meaning(message, self._written) for message in messages]

    async def begin(self, messages: list[Message], said: list[str], tools: list[dict[str, Any]]) -> Answer:
        """The answer that a request asks for, with its prompt and without tokens.

        Args:
            said: meanings of the messages.

        Raises:
            Refused: if the chat template cannot render the messages.
        """
        key = json.dumps(tools, sort_keys=True)
        parent, known = self._longest(said, key)
        new = await self._shown(parent, messages[known:], said[known:])
        if parent is not None:
            # What the agent has written anew stays as it was sampled; its own words for it are not rendered.
            updated = [*parent.messages, *new]
            try:
                prompt_ids, taken_back_tok = await _aside(lambda: self._appended(parent, updated, tools))
            except Exception:  # of a template, or of a builder that does not know such an order of roles
                self.new_chains["not_appended"] += 1
                new = await self._shown(None, messages, said)
            else:
                start = len(parent.prompt_ids) + len(parent.token_ids) - taken_back_tok
                parent.held_prompt = None
                context_ids = prompt_ids[start:]
                return Answer(parent, key, said[known:], updated, taken_back_tok, context_ids, held_prompt=prompt_ids)
        elif self.answers:
            self.new_chains["other_tools" if self._longest(said, None)[0] else "other_history"] += 1
        try:
            prompt_ids = await _aside(lambda: self._builder.build_initial_tokens(new, tools=tools or None))
        except Exception as error:  # a template may raise anything at what it is shown
            raise Refused(400, f"the model's chat template refuses these messages: {error}") from error
        return Answer(None, key, said, new, 0, list(prompt_ids))

    async def _shown(self, parent: Answer | None, messages: list[Message], said: list[str]) -> list[Message]:
        """New messages behind an answer, as the template is shown them."""
        shown = messages if self._show is None else await self._show(parent, messages, said)
        return [self._for_template(message) for message in shown]

    def _for_template(self, message: Message) -> Message:
        return for_template(message, has_text_arguments=self._template.has_text_arguments)

    def _appended(self, parent: Answer, updated: list[Message], tools: list[dict[str, Any]]) -> tuple[list[int], int]:
        """The prompt that goes on from an answer, and how many tokens of that one's end the template takes back."""
        closing_ids = self._template.closing_of(parent.token_ids)
        before = parent.all_ids + closing_ids
        merged = self._builder.merge_context_tokens(parent.messages, updated, before, tools=tools or None)
        kept_tok = len(before) - merged.removed_prefix_token_count
        prompt_ids = list(merged.token_ids)
        if prompt_ids[:kept_tok] != before[:kept_tok]:
            raise ValueError("the builder has changed tokens that were sampled")
        return prompt_ids, max(0, merged.removed_prefix_token_count - len(closing_ids))

    def end(self, answer: Answer, message: Message) -> None:
        """The answer has its tokens; `message` is what the agent is told."""
        answer.messages = [*answer.messages, self._for_template(message)]
        answer.known_by = meanings_of_reply(message, self._written)
        (self._roots if answer.parent is None else answer.parent.children).append(answer)
        self.answers.append(answer)

    def _longest(self, said: Sequence[str], tools: str | None) -> tuple[Answer | None, int]:
        """The answer that is the longest beginning of these messages, the latest of several, and its length with all
        before it [messages]. `tools`: None for any."""
        best: tuple[Answer | None, int] = (None, 0)
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
        """A row for each leaf, in the order of their ends: verl scores and shows the last one, which the agent has
        ended with. An answer is trained in the first row that has it. Those at an end that no client has had are in no
        row: the agent's result does not come from them.
        """
        trained: set[int] = set()
        gone: set[int] = set()
        leaves: list[Answer] = []
        for answer in reversed(self.answers):  # children ended after their parents
            is_leaf = all(id(child) in gone for child in answer.children)
            if is_leaf and not answer.is_heard:
                gone.add(id(answer))
            elif is_leaf:
                leaves.append(answer)
        for leaf in reversed(leaves):
            path, new = leaf.path, list[Answer]()
            ids, mask, log_probs = list[int](), list[int](), list[float]()
            for answer in path:
                if answer.parent is not None:
                    for tokens in (ids, mask, log_probs):
                        del tokens[len(tokens) - answer.taken_back_tok :]
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
            )


async def _aside(function: Callable[[], T]) -> T:
    """On a thread: to render a long history takes tens of milliseconds."""
    return await asyncio.get_running_loop().run_in_executor(None, function)
