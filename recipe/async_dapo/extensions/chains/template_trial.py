"""Whether a model's chat template and verl's builder of continuous tokens agree: tried with two turns and a tool's
result, and with an answer that was cut.
"""

from typing import Any

from ..gateway.messages import Message, for_template
from ..gateway.template import CALL, QUESTION, RESULT, TOOLS, Builder
from .closing import ANSWER, MORE, ClosedTemplate

_CUT = "an answer that was cut"  # by a limit on its tokens, or a stop string


def differences(builder: Builder, tokenizer: Any) -> dict[str, str]:
    """In what a chain that goes on differs from a full rendering of the same messages, by what is appended."""
    template = ClosedTemplate.closed(builder, tokenizer)
    call = for_template(CALL, has_text_arguments=template.has_text_arguments)
    found = {}
    with_tool: list[tuple[str, list[Message], Message, Any]] = [("a tool's result", [QUESTION, call], RESULT, TOOLS)]
    said: list[Message] = [QUESTION, ANSWER]
    cases = [*([] if template.refuses else with_tool), ("a user's message", said, MORE, None), (_CUT, said, MORE, None)]
    for name, before, new, tools in cases:
        try:
            ids = _ids_up_to(builder, tokenizer, before, tools)
            if name == _CUT:
                ids = ids[:-1] if ids[-1] in template.end_ids else ids
                ids += template.closing_of(ids)
            merged = builder.merge_context_tokens(before, [*before, new], ids, tools=tools).token_ids
            whole = builder.build_initial_tokens([*before, new], tools=tools)
        except Exception as error:  # of a template, or of a builder
            found[name] = f"it cannot be appended ({type(error).__name__}: {error})"
            continue
        if list(merged) != list(whole):
            found[name] = _difference(tokenizer, list(merged), list(whole))
    return found


def _ids_up_to(builder: Any, tokenizer: Any, messages: list[Message], tools: Any) -> list[int]:
    """As a chain would have them: the prompt, and an answer that ends with the token that ends answers."""
    prompt = list(builder.build_initial_tokens(messages[:-1], tools=tools))
    whole = list(builder._render_tokens(messages, add_generation_prompt=False, tools=tools))
    if whole[: len(prompt)] != prompt:
        raise ValueError("the template renders an answer's beginning in another way than it asks for one")
    end = tokenizer.eos_token_id
    last = len(whole) - whole[::-1].index(end) if end in whole[len(prompt) :] else len(whole)
    return whole[:last]


def _difference(tokenizer: Any, merged: list[int], whole: list[int]) -> str:
    unlike = (place for place, pair in enumerate(zip(merged, whole, strict=False)) if pair[0] != pair[1])
    place = next(unlike, min(len(merged), len(whole)))
    kept, rendered = (tokenizer.decode(ids[max(0, place - 8) : place + 8]) for ids in (merged, whole))
    return f"the chain has {kept!r} where a full rendering has {rendered!r}"
