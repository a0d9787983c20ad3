"""What the model's tokens say: text, reasoning, and calls of tools, by verl's parsers."""

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import ValidationError
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.schemas import OpenAIFunctionToolSchema

from ...core.outcome import Cause, KnownPlaces
from .messages import Reply, Request, ToolCall
from .reply_formats import FORMATS, is_object, without_thoughts

logger = logging.getLogger(__name__)

_logged = KnownPlaces()  # of this worker
_special: "WeakKeyDictionary[Any, re.Pattern[str]]" = WeakKeyDictionary()

# transformers' model_type, or its beginning -> verl's parser. The first that fits counts.
PARSERS = (
    ("qwen3_5", "qwen3_coder"),
    ("qwen3_next", "qwen3_coder"),
    ("qwen", "hermes"),
    ("glm", "glm"),
    ("gpt_oss", "gpt-oss"),
    ("seed_oss", "seed"),
    ("minimax", "minimax"),
    ("kimi", "kimi"),
    ("deepseek_v4", "deepseek_v4"),
    ("gemma4", "gemma4"),
)


def parser_of(model_type: str | None) -> str | None:
    """verl's parser of this family's tool calls, if it is known."""
    return next((parser for family, parser in PARSERS if (model_type or "").startswith(family)), None)


def known_parsers() -> list[str]:
    return sorted(ToolParser._registry)


def _special_tokens(tokenizer: Any) -> re.Pattern[str]:
    """A pattern of them; there may be thousands."""
    if tokenizer not in _special:
        tokens = [one.content for one in tokenizer.added_tokens_decoder.values() if one.special]
        _special[tokenizer] = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)")
    return _special[tokenizer]


class ReplyReader:
    """Reads replies of one model.

    Args:
        parser: name of verl's parser of tool calls; None: calls are text.
    """

    def __init__(self, tokenizer: Any, *, parser: str | None) -> None:
        self._tokenizer = tokenizer
        self._parser = None if parser is None else ToolParser.get_tool_parser(parser, tokenizer)
        self._format = FORMATS.get(parser or "", FORMATS["hermes"])
        self._is_known = parser in FORMATS
        self.stop_token_ids = [] if self._parser is None else list(self._parser.stop_token_ids)
        ends = tokenizer.encode(self._format.thought[1], add_special_tokens=False)  # the vocabulary would take 0.1 s
        self._thought_end = ends[0] if len(ends) == 1 and ends[0] != tokenizer.unk_token_id else None
        self._special = _special_tokens(tokenizer)

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
        reasoning, said = self._without_reasoning(token_ids)
        text, calls = self._shown(said), tuple[ToolCall, ...]()
        if self._parser is not None and request.tools:
            text, found = await self._with_calls(said, [schema_of(tool) for tool in request.tools])
            calls = tuple(
                ToolCall(call_id=f"call_{name}_{number}", name=call.name, arguments=call.arguments)
                for number, call in enumerate(found)
            )
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

    def _without_reasoning(self, token_ids: list[int]) -> tuple[str, str]:
        """The reasoning, and what else the tokens say, with special tokens."""
        if self._format.is_harmony:
            reasoning, said = without_thoughts(self._tokenizer.decode(token_ids))
            return self._shown(reasoning), said
        begin, _ = self._format.thought
        thought_ids, said_ids = list[int](), token_ids
        if self._thought_end in token_ids:
            end = token_ids.index(self._thought_end)
            thought_ids, said_ids = token_ids[:end], token_ids[end + 1 :]
        thought, said = self._tokenizer.decode(thought_ids), self._tokenizer.decode(said_ids)
        if not thought_ids and said.startswith(begin):  # cut in the middle of it
            thought, said = said, ""
        return self._shown(thought.strip().removeprefix(begin)).strip(), said

    async def _with_calls(self, said: str, tools: list[Any]) -> tuple[str, list[Any]]:
        """The text without the calls that can be read, and these. One that cannot be is part of the text."""
        if not self._is_known:
            rest, found = await self._parsed(said, tools)
            return self._shown(rest if found else said), found
        calls, left, end = list[Any](), "", 0
        for block in self._format.calls_in(said):
            if not self._format.is_readable(block[0]):
                continue
            _, found = await self._parsed(self._format.framed(block[0]), tools)
            if found:
                left += said[end : block.start()]
                calls, end = [*calls, *found], block.end()
        if not calls:
            return self._shown(said), []
        left += said[end:]
        for marker in self._format.frame:
            left = left.replace(marker, "")
        return self._shown(left).strip("\n"), calls

    async def _parsed(self, text: str, tools: list[Any]) -> tuple[str, list[Any]]:
        """What verl's parser makes of it; no calls, if one of them is none."""
        assert self._parser is not None
        try:
            token_ids = self._tokenizer.encode(text, add_special_tokens=False)
            rest, found = await self._parser.extract_tool_calls(token_ids, tools)
        except Exception as error:  # at what a model may say: then it is text
            if _logged.is_new(Cause(type(error).__name__)):
                logger.warning("verl's parser of calls has failed at an answer, which stays text: %r", error)
            return "", []
        return (rest, found) if all(map(_is_call, found)) else ("", [])

    def _shown(self, text: str) -> str:
        """As agents see it: without special tokens."""
        return self._special.sub("", text)


def _is_call(call: Any) -> bool:
    """Whether it has a name, and its arguments are an object."""
    return bool(call.name.strip()) and is_object(call.arguments)


def schema_of(tool: dict[str, Any]) -> OpenAIFunctionToolSchema:
    """A tool as verl's parsers want it, which know fewer schemas than agents use: an argument of several types, or of
    a schema elsewhere, counts as text.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: for what describes no tool.
    """
    function = tool["function"]
    with suppress(ValidationError):
        return OpenAIFunctionToolSchema(type="function", function={"description": ""} | function)
    parameters = function.get("parameters") or {}
    properties = {
        name: {"type": kind if isinstance(schema, dict) and isinstance(kind := schema.get("type"), str) else "string"}
        for name, schema in (parameters.get("properties") or {}).items()
    }
    plain = {"type": "object", "properties": properties, "required": list(parameters.get("required") or ())}
    described = {"name": function["name"], "description": "", "parameters": plain}
    return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": described})
