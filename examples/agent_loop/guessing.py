"""An agent loop with an environment: the model guesses a number, and is told whether it was too low or too high."""

import random
import re
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from recipe.async_dapo.calls import recorded

from .dialogue import Dialogue

TURNS = 4


async def judge(secret: int, answer: str) -> str:
    """The environment: here a comparison; a game server, a browser or a sandbox is asked in the same way."""
    guesses = re.findall(r"\d+", answer)
    if not guesses:
        return "Say a number."
    return "Right." if int(guesses[-1]) == secret else "Too low." if int(guesses[-1]) < secret else "Too high."


class Guessing(AgentLoopBase):
    async def run(self, sampling_params: dict[str, Any], **sample: Any) -> AgentLoopOutput:
        secret = await recorded(random.randrange, 100)  # the same number when the loop runs again
        dialogue = Dialogue(self, sample["raw_prompt"], sampling_params)
        while True:
            answer = await dialogue.ask()
            verdict = await recorded(judge, secret, answer)  # asked once, however often the loop runs
            if verdict == "Right." or dialogue.turns == TURNS or dialogue.is_full:
                return dialogue.output()
            await dialogue.tell(verdict)
