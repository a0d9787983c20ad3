"""What an agent has said and heard, as exact token ids: its answers, and the rows that are trained.

What was sampled is never made tokens of again. A request is rendered by verl's continuous-token builder, and its answer
is a row of its own; `extensions/chains` makes one row of requests that go on from each other.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...config.extensions import not_here, of_copy
from .messages import Message, Refused, for_template, meaning
from .template import Builder, Template

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Answer:
    """One turn.

    Attributes:
        context_ids: rendered for it: its prompt.
        messages: those of its request as the template has been shown them, and, once it is known, its own.
        digest: of its prompt, by which its turn is found in the record.
    """

    context_ids: list[int]
    messages: list[Message]
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    digest: bytes = b""
    is_heard: bool = False  # a client has had it
    extra_fields: dict[str, Any] = field(default_factory=dict)
    experts: Any = None

    @property
    def prompt_ids(self) -> list[int]:
        return self.context_ids

    @property
    def all_ids(self) -> list[int]:
        return self.prompt_ids + self.token_ids

    @property
    def root_tok(self) -> int:
        """Tokens before the first answer of its row."""
        return len(self.context_ids)


Show = Callable[[Answer | None, list[Message], list[str]], Awaitable[list[Message]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Answers as they are trained: response, mask and log-probs have one entry a token."""

    last: Answer
    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    log_probs: list[float]
    trained: list[Answer]  # the answers that no earlier row has trained
    rolled_back_tok: int = 0  # of theirs, taken back by the chat template


class Conversation:
    """All answers of a session, each a row.

    Args:
        builder: renders messages.
        template: what `template_of` has found.
        written: texts of messages, as they are compared.
        show: given what they are behind, new messages, and their meanings, returns those that are rendered in their
            place; None: they are themselves.
    """

    def __init__(
        self,
        builder: Builder,
        *,
        template: Template,
        written: Callable[[str], str],
        show: Show | None,
    ) -> None:
        self._builder = builder
        self._template = template
        self._written = written
        self._show = show
        self.answers: list[Answer] = []  # in the order of their ends
        self.new_chains: Counter[str] = Counter()  # rows that go on from no other answer but the first, by cause

    @classmethod
    def template_of(cls, builder: Builder, tokenizer: Any) -> Template:
        """What has to be known of a model's chat template; it takes a few renderings."""
        return Template.of(builder)

    @classmethod
    def warnings(cls, builder: Builder, tokenizer: Any) -> list[str]:
        """What to tell before a run of how its turns become rows."""
        return [f"each turn is trained as a row of its own: {not_here('chains')}"]

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
        if self.answers:
            self.new_chains["each_turn"] += 1
        shown = await self.shown(None, messages, said)
        return Answer(await self.rendered(shown, tools), shown)

    async def shown(self, parent: Answer | None, messages: list[Message], said: list[str]) -> list[Message]:
        """New messages behind an answer, as the template is shown them."""
        shown = messages if self._show is None else await self._show(parent, messages, said)
        return [self.for_template(message) for message in shown]

    def for_template(self, message: Message) -> Message:
        return for_template(message, has_text_arguments=self._template.has_text_arguments)

    async def rendered(self, messages: list[Message], tools: list[dict[str, Any]]) -> list[int]:
        try:
            return list(await aside(lambda: self._builder.build_initial_tokens(messages, tools=tools or None)))
        except Exception as error:  # a template may raise anything at what it is shown
            raise Refused(400, f"the model's chat template refuses these messages: {error}") from error

    def end(self, answer: Any, message: Message) -> None:
        """The answer has its tokens; `message` is what the agent is told."""
        answer.messages = [*answer.messages, self.for_template(message)]
        self.answers.append(answer)

    def rows(self) -> Iterator[Row]:
        """In the order of their ends: verl scores and shows the last one, which the agent has ended with. Answers that
        no client has had are in no row: the agent's result does not come from them.
        """
        for answer in self.answers:
            if answer.is_heard:
                yield Row(
                    last=answer,
                    prompt_ids=answer.prompt_ids,
                    response_ids=answer.token_ids,
                    mask=[1] * len(answer.token_ids),
                    log_probs=answer.log_probs,
                    trained=[answer],
                )


def conversation_class() -> type[Conversation]:
    """That of the extension that has one row of several turns, where this copy has it."""
    found: type[Conversation] = of_copy("conversation") or Conversation
    return found


async def aside(function: Callable[[], T]) -> T:
    """On a thread: to render a long history takes tens of milliseconds."""
    return await asyncio.get_running_loop().run_in_executor(None, function)
