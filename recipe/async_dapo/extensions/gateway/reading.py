"""What the model's tokens say: text, reasoning, and calls of tools, by verl's parsers."""

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.schemas import OpenAIFunctionToolSchema

from ...core.outcome import Cause, KnownPlaces
from .messages import Refused, Reply, Request, ToolCall, json_of

logger = logging.getLogger(__name__)

_logged = KnownPlaces()  # of this worker

THOUGHT_ENDS = "</think>"  # in all families whose template shows reasoning between tags
THOUGHT_BEGINS = "<think>"
_BLOCK = re.compile(r"<((?:\w+:)?tool_call)>.*?</\1>", re.DOTALL)  # of most families, a call or several

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


class ReplyReader:
    """Reads replies of one model.

    Args:
        parser: name of verl's parser of tool calls; None: calls are text.
    """

    def __init__(self, tokenizer: Any, *, parser: str | None) -> None:
        self._tokenizer = tokenizer
        self._parser = None if parser is None else ToolParser.get_tool_parser(parser, tokenizer)
        self.stop_token_ids = [] if self._parser is None else list(self._parser.stop_token_ids)
        ends = tokenizer.encode(THOUGHT_ENDS, add_special_tokens=False)  # to ask for the vocabulary takes 0.1 s
        self._thought_end = ends[0] if len(ends) == 1 and ends[0] != tokenizer.unk_token_id else None

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
        reasoning, said_ids = self._without_reasoning(token_ids)
        text, calls = self._text(said_ids), tuple[ToolCall, ...]()
        if self._parser is not None and request.tools:
            text, found = await self._with_calls(said_ids, text, [schema_of(tool) for tool in request.tools])
            calls = tuple(
                ToolCall(call_id=f"call_{name}_{number}", name=call.name, arguments=call.arguments)
                for number, call in enumerate(found)
            )
        stop_string = min((one for one in request.stop if one in text), key=text.index, default=None)
        if stop_string is not None:
            text = text[: text.index(stop_string)]
        elif not reasoning and text.startswith(THOUGHT_BEGINS) and not calls:  # cut in the middle of it
            reasoning, text = text.removeprefix(THOUGHT_BEGINS), ""
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

    async def _with_calls(self, token_ids: list[int], text: str, tools: list[Any]) -> tuple[str, list[Any]]:
        """The text without the calls that can be read, and these. One that cannot be is part of the text."""
        rest, found = await self._parsed(token_ids, tools)
        blocks = list(_BLOCK.finditer(text))
        if found and len(found) >= len(blocks):
            for token in self._tokenizer.all_special_tokens:
                rest = rest.replace(token, "")
            return rest, found
        calls, left, end = list[Any](), "", 0
        for block in blocks if len(blocks) > 1 else ():  # each by itself: verl's parsers drop what they cannot read
            _, of_block = await self._parsed(self._tokenizer.encode(block[0], add_special_tokens=False), tools)
            if of_block:
                left += text[end : block.start()]
                calls, end = [*calls, *of_block], block.end()
        return left + text[end:], calls

    async def _parsed(self, token_ids: list[int], tools: list[Any]) -> tuple[str, list[Any]]:
        """What verl's parser makes of it; no calls, if one of them is none."""
        assert self._parser is not None
        try:
            rest, found = await self._parser.extract_tool_calls(token_ids, tools)
        except Exception as error:  # at what a model may say: then it is text
            if _logged.is_new(Cause(type(error).__name__)):
                logger.warning("verl's parser of calls has failed at an answer, which stays text: %r", error)
            return "", []
        return (rest, found) if all(map(_is_call, found)) else ("", [])

    def _text(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def _without_reasoning(self, token_ids: list[int]) -> tuple[str, list[int]]:
        """The reasoning as text, and the tokens behind it."""
        if self._thought_end is None or self._thought_end not in token_ids:
            return "", token_ids
        end = token_ids.index(self._thought_end)
        reasoning = self._text(token_ids[:end]).strip().removeprefix(THOUGHT_BEGINS)
        return reasoning.strip(), token_ids[end + 1 :]


def _is_call(call: Any) -> bool:
    """Whether its arguments are an object."""
    try:
        return isinstance(json_of(call.arguments), dict)
    except (ValueError, Refused):
        return False


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
