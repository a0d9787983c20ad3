"""How a model's chat template ends an answer that was cut, before a message can follow it."""

from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

from ..gateway.messages import Message
from ..gateway.template import QUESTION, Builder, Template

MORE: Message = {"role": "user", "content": "And a lark?"}
ANSWER: Message = {"role": "assistant", "content": "A bird."}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedTemplate(Template):
    """Also knows what is behind an answer.

    Attributes:
        closing_ids: what it has between an answer's text and the next message.
        end_ids: tokens that end an answer. One whose last token is none of these was cut, by a limit or a stop string.
    """

    closing_ids: tuple[int, ...]
    end_ids: frozenset[int]

    @classmethod
    def closed(cls, builder: Builder, tokenizer: Any) -> "ClosedTemplate":
        closing_ids = _closing_ids(builder)
        special = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
        end_ids = frozenset({tokenizer.eos_token_id, *special, *closing_ids[:1]})
        return cls(closing_ids=closing_ids, end_ids=end_ids, **asdict(Template.of(builder)))

    def closing_of(self, answer_ids: list[int]) -> list[int]:
        """What an answer lacks at its end before a message can follow: verl's builders append it to none."""
        return [] if answer_ids and answer_ids[-1] in self.end_ids else list(self.closing_ids)


def _closing_ids(builder: Builder) -> tuple[int, ...]:
    """The end that renderings of two answers share, without what the builder appends; empty if that differs."""
    answers: list[list[Message]] = [[QUESTION, ANSWER | {"content": text}] for text in ("Yes", "No!")]
    try:
        one, other = (list(builder.build_initial_tokens([*before, MORE], tools=None))[::-1] for before in answers)
        appended = list(builder.merge_context_tokens(answers[0], [*answers[0], MORE], [], tools=None).token_ids)[::-1]
    except Exception:  # of a template, or of a builder: the check at start-up tells that
        return ()
    shared = [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]
    return tuple(shared[len(appended) :][::-1]) if shared[: len(appended)] == appended else ()
