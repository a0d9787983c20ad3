"""How models write calls of tools and reasoning into a reply, by the name of verl's parser of their calls.

verl's parsers read a reply as a whole. A call that they cannot read, and in most families all text behind the first
one, they drop; some read an unfinished call as a whole one, or broken arguments as none. So each call is found here,
and given to the parser by itself.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..gateway.messages import Refused, json_of


def _between(begin: str, end: str) -> str:
    """From `begin` to the next `end`, without another `begin` in between: an unfinished call is none."""
    return f"{re.escape(begin)}(?:(?!{re.escape(begin)}).)*?{re.escape(end)}"


def _anything(call: str) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """
    Attributes:
        call: a pattern of one call.
        frame: what verl's parser wants before a call and behind it; in a reply it stands around all of them.
        is_readable: False for a call that verl's parser would read as another one.
        thought: what reasoning begins and ends with.
        is_harmony: a reply is a sequence of messages, of which some are reasoning.
    """

    call: str
    frame: tuple[str, str] = ("", "")
    is_readable: Callable[[str], bool] = _anything
    thought: tuple[str, str] = ("<think>", "</think>")
    is_harmony: bool = False

    def calls_in(self, text: str) -> Iterator[re.Match[str]]:
        return re.finditer(self.call, text, re.DOTALL)

    def framed(self, call: str) -> str:
        before, behind = self.frame
        return call if call.startswith(before) else f"{before}{call}{behind}"


def _has_an_object(begin: str, end: str) -> Callable[[str], bool]:
    """verl takes arguments that are none for `{}`."""

    def is_readable(call: str) -> bool:
        return is_object(call.partition(begin)[2].rpartition(end)[0])

    return is_readable


def is_object(text: str) -> bool:
    """Whether this is a JSON object that is not nested too deeply."""
    try:
        return isinstance(json_of(text), dict)
    except (ValueError, Refused):
        return False


def _is_flat(call: str) -> bool:
    """verl reads no list and no object among Gemma's arguments, but cuts them at their first comma."""
    arguments = re.sub(r'<\|"\|>.*?<\|"\|>', "", call, flags=re.DOTALL).partition("{")[2]
    return "{" not in arguments and "[" not in arguments


_TAGS = ReplyFormat(call=_between("<tool_call>", "</tool_call>"))
_DSML = "\uff5cDSML\uff5c"

FORMATS = {
    "hermes": _TAGS,
    "qwen3_coder": _TAGS,
    "glm": _TAGS,
    "seed": ReplyFormat(
        call=_between("<seed:tool_call>", "</seed:tool_call>"), thought=("<seed:think>", "</seed:think>")
    ),
    "minimax": ReplyFormat(
        call=_between('<invoke name="', "</invoke>"), frame=("<minimax:tool_call>", "</minimax:tool_call>")
    ),
    "kimi": ReplyFormat(
        call=_between("<|tool_call_begin|>", "<|tool_call_end|>"),
        frame=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        is_readable=_has_an_object("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
    "deepseek_v4": ReplyFormat(
        call=_between(f'<{_DSML}invoke name="', f"</{_DSML}invoke>"),
        frame=(f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>"),
    ),
    "gemma4": ReplyFormat(
        call=_between("<|tool_call>", "<tool_call|>"),
        is_readable=_is_flat,
        thought=("<|channel>thought", "<channel|>"),
    ),
    "gpt-oss": ReplyFormat(
        call=r"(?:<\|start\|>assistant)?<\|channel\|>[^<]* to=functions\.(?:(?!<\|start\|>).)*?<\|call\|>",
        frame=("<|start|>assistant", ""),  # the first message's is at the end of the prompt
        is_readable=_has_an_object("<|message|>", "<|call|>"),
        is_harmony=True,
    ),
}

_THOUGHT = re.compile(r"(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>(.*?)(?:<\|end\|>|\Z)", re.DOTALL)
_HEAD = re.compile(r"(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)(?: ?<\|constrain\|>\w+)?<\|message\|>")


def without_thoughts(text: str) -> tuple[str, str]:
    """(reasoning, the rest without the heads of its messages) of a reply that is a sequence of messages."""
    return "\n".join(_THOUGHT.findall(text)), _HEAD.sub("", _THOUGHT.sub("", text))
