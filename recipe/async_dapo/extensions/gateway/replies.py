"""What the model's tokens say, as far as no format of a model's has to be known: text, and where it ends."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ...config.extensions import not_here, not_in_copy, of_copy
from ...config.values import ConfigError
from .messages import Refused, Reply, Request, ToolCall
from .options import FILE

_special: "WeakKeyDictionary[Any, re.Pattern[str]]" = WeakKeyDictionary()


class Parts(NamedTuple):
    """What an answer holds."""

    reasoning: str
    text: str
    calls: tuple[ToolCall, ...] = ()


class ReplyReader:
    """Reads replies of one model: all that they hold is text.

    Args:
        parser: of calls of tools, if an agent's entry names one.
        model_type: transformers' name of the model's family, if it has one.
        default: the parser that the run's options name.
    """

    stop_token_ids: Sequence[int] = ()  # that end an answer, beside the tokenizer's own

    def __init__(self, tokenizer: Any, *, parser: str | None, model_type: str | None, default: str) -> None:
        self.check(parser)
        self._tokenizer = tokenizer
        self._special = _special_tokens(tokenizer)

    @classmethod
    def check(cls, parser: str | None) -> None:
        """
        Raises:
            ConfigError: for a parser that an agent's entry must not name.
        """
        if parser is not None:
            raise ConfigError(f"{FILE}, parser", parser, not_in_copy("reply_formats", "leave it out"))

    @classmethod
    def warnings(cls, parser: str | None, model_type: str | None, default: str) -> list[str]:
        """What to tell before a run, of one that is made with these."""
        return [f"requests with tools are refused, and reasoning is text: {not_here('reply_formats')}"]

    def check_tools(self, tools: list[dict[str, Any]]) -> None:
        """
        Raises:
            Refused: if calls of these could not be read.
        """
        if tools:
            raise Refused(400, f"tools are not served: {not_in_copy('reply_formats', 'ask without tools')}")

    async def parts(self, name: str, token_ids: list[int], tools: list[dict[str, Any]]) -> Parts:
        """What an answer's tokens hold; ids of its calls have its name in them."""
        return Parts("", self.shown(self._tokenizer.decode(token_ids)))

    async def read(
        self,
        name: str,
        request: Request,
        token_ids: list[int],
        log_probs: Sequence[float],
        *,
        prompt_tok: int,
        limit_tok: int,
    ) -> Reply:
        """The reply with these tokens, of which there could have been `limit_tok`."""
        reasoning, text, calls = await self.parts(name, token_ids, request.tools)
        said_last = text or reasoning
        stop_string = min((one for one in request.stop if one in said_last), key=said_last.index, default=None)
        if stop_string is not None:
            reasoning = reasoning if text else reasoning.partition(stop_string)[0]
            text = text.partition(stop_string)[0]
        ends = {self._tokenizer.eos_token_id, *self.stop_token_ids}
        told = zip(token_ids, log_probs, strict=True) if request.has_log_probs else ()
        return Reply(
            name=name,
            text=text,
            reasoning=reasoning,
            calls=calls,
            is_cut=len(token_ids) >= limit_tok and token_ids[-1] not in ends and stop_string is None,
            stop_string=stop_string,
            prompt_tok=prompt_tok,
            reply_tok=len(token_ids),
            tokens=tuple((self._tokenizer.decode([token]), log_prob) for token, log_prob in told),
            model=request.model,
        )

    def shown(self, text: str) -> str:
        """As agents see it: without special tokens."""
        return self._special.sub("", text)


def reader_class() -> type[ReplyReader]:
    """That of the extension that knows the formats, where this copy has it."""
    found: type[ReplyReader] = of_copy("reply_reader") or ReplyReader
    return found


def _special_tokens(tokenizer: Any) -> re.Pattern[str]:
    """A pattern of them; there may be thousands."""
    if tokenizer not in _special:
        tokens = [one.content for one in tokenizer.added_tokens_decoder.values() if one.special]
        _special[tokenizer] = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)")
    return _special[tokenizer]
