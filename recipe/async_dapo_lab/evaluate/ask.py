"""Answers one question with a model, in a process that is vLLM's alone: `python -m ...evaluate.ask < QUESTION.json`."""

import json
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

MARK = "answers: "  # begins the line of output that is JSON; vLLM writes others


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """
    Attributes:
        engine: vLLM's arguments.
        sampling: of vLLM's `SamplingParams`.
        template: arguments of the chat template.
    """

    text: str
    engine: dict[str, Any]
    sampling: dict[str, Any]
    template: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def answers(question: Question) -> list[str]:
    from vllm import LLM, SamplingParams

    engine = LLM(**question.engine)
    [output] = engine.chat(
        [{"role": "user", "content": question.text}],
        SamplingParams(**question.sampling),
        use_tqdm=False,
        chat_template_kwargs=question.template,
    )
    return [one.text for one in output.outputs]


if __name__ == "__main__":
    found = answers(Question(**json.load(sys.stdin)))
    sys.stdout.write(f"\n{MARK}{json.dumps(found)}\n")
