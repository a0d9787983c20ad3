"""What the model's tokens say: text, reasoning, and calls of tools, by verl's parsers."""

import logging
from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.schemas import OpenAIFunctionToolSchema

from ...config.values import check_choice
from ...core.users_errors import Cause, KnownPlaces
from ..gateway.messages import Refused, ToolCall
from ..gateway.options import FILE
from ..gateway.replies import Parts, ReplyReader
from .formats import FORMATS, is_object, without_thoughts

logger = logging.getLogger(__name__)

_logged = KnownPlaces()  # of this worker

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


class FormatReader(ReplyReader):
    """Reads replies by one of verl's parsers of tool calls: the one that is named, else that of the model's family, if
    it is known, else the default. A parser whose format is not known is given replies as a whole.
    """

    def __init__(self, tokenizer: Any, *, parser: str | None, model_type: str | None, default: str) -> None:
        super().__init__(tokenizer, parser=parser, model_type=model_type, default=default)
        chosen = parser or parser_of(model_type) or default
        self._parser = ToolParser.get_tool_parser(chosen, tokenizer)
        self._format = FORMATS.get(chosen, FORMATS["hermes"])
        self._is_known = chosen in FORMATS
        self.stop_token_ids = list(self._parser.stop_token_ids)
        ends = tokenizer.encode(self._format.thought[1], add_special_tokens=False)  # the vocabulary would take 0.1 s
        self._thought_end = ends[0] if len(ends) == 1 and ends[0] != tokenizer.unk_token_id else None

    @classmethod
    def check(cls, parser: str | None) -> None:
        if parser is not None:
            check_choice(f"{FILE}, parser", parser, known_parsers())

    @classmethod
    def warnings(cls, parser: str | None, model_type: str | None, default: str) -> list[str]:
        if parser or parser_of(model_type):
            return []
        check_choice("actor_rollout_ref.rollout.multi_turn.format", default, known_parsers())
        return [f"calls of tools are read by the parser {default}: which one {model_type} needs is not known"]

    def check_tools(self, tools: list[dict[str, Any]]) -> None:
        try:
            list(map(schema_of, tools))
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # sooner than when its calls are read
            raise Refused(400, f"a tool is not understood: {error!r:.300}") from error

    async def parts(self, name: str, token_ids: list[int], tools: list[dict[str, Any]]) -> Parts:
        reasoning, said = self._without_reasoning(token_ids)
        if not tools:
            return Parts(reasoning, self.shown(said))
        text, found = await self._with_calls(said, [schema_of(tool) for tool in tools])
        calls = (
            ToolCall(call_id=f"call_{name}_{number}", name=call.name, arguments=call.arguments)
            for number, call in enumerate(found)
        )
        return Parts(reasoning, text, tuple(calls))

    def _without_reasoning(self, token_ids: list[int]) -> tuple[str, str]:
        """The reasoning, and what else the tokens say, with special tokens."""
        if self._format.is_harmony:
            reasoning, said = without_thoughts(self._tokenizer.decode(token_ids))
            return self.shown(reasoning), said
        begin, _ = self._format.thought
        thought_ids, said_ids = list[int](), token_ids
        if self._thought_end in token_ids:
            end = token_ids.index(self._thought_end)
            thought_ids, said_ids = token_ids[:end], token_ids[end + 1 :]
        thought, said = self._tokenizer.decode(thought_ids), self._tokenizer.decode(said_ids)
        if not thought_ids and said.startswith(begin):  # cut in the middle of it
            thought, said = said, ""
        return self.shown(thought.strip().removeprefix(begin)).strip(), said

    async def _with_calls(self, said: str, tools: list[Any]) -> tuple[str, list[Any]]:
        """The text without the calls that can be read, and these. One that cannot be is part of the text."""
        if not self._is_known:
            rest, found = await self._parsed(said, tools)
            return self.shown(rest if found else said), found
        calls, left, end = list[Any](), "", 0
        for block in self._format.calls_in(said):
            if not self._format.is_readable(block[0]):
                continue
            _, found = await self._parsed(self._format.framed(block[0]), tools)
            if found:
                left += said[end : block.start()]
                calls, end = [*calls, *found], block.end()
        if not calls:
            return self.shown(said), []
        left += said[end:]
        for marker in self._format.frame:
            left = left.replace(marker, "")
        return self.shown(left).strip("\n"), calls

    async def _parsed(self, text: str, tools: list[Any]) -> tuple[str, list[Any]]:
        """What verl's parser makes of it; no calls, if one of them is none."""
        try:
            token_ids = self._tokenizer.encode(text, add_special_tokens=False)
            rest, found = await self._parser.extract_tool_calls(token_ids, tools)
        except Exception as error:  # at what a model may say: then it is text
            if _logged.is_new(Cause(type(error).__name__)):
                logger.warning("verl's parser of calls has failed at an answer, which stays text: %r", error)
            return "", []
        return (rest, found) if all(map(_is_call, found)) else ("", [])


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
