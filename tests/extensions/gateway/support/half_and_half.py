"""At temperature 0: of two sessions of a prompt one is a loop written inside, the other goes through the gateway. Both
write the same diary, a line a session. The loop inside pays for each turn; in each round one of these calls goes on
until the step has been trained.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from examples.agent_loop.dialogue import Dialogue
from recipe.async_dapo.calls import recorded
from recipe.async_dapo.extensions.gateway.black_box import BlackBoxAgent
from recipe.async_dapo.recording import current_recorder

from ....support import till
from .agents import CHECK, TURNS

DIARY = "GATEWAY_DIARY"
FOLDER_OF_A_LIFE = "TMPDIR"  # a run's workers and what they start have it


class HalfAndHalf(BlackBoxAgent):
    async def run(self, sampling_params: dict[str, Any], **sample: Any) -> list[AgentLoopOutput]:
        sampling_params = sampling_params | {"temperature": 0.0}
        if sample["session_id"] % 8 == 7:
            program = str(Path(__file__).with_name("command.py"))
            self._options = type(self._options)(command=[sys.executable, program])
        if sample["session_id"] % 2:
            outputs = await super().run(sampling_params, **sample)
        else:
            outputs = [await self._inside(sampling_params, **sample)]
        recorder = current_recorder.get()
        assert recorder is not None
        spans = [[one.policy_version for one in turn.segments] for turn in recorder.trajectory.turns]
        rows = [
            {
                "prompt": one.prompt_ids,
                "response": one.response_ids,
                "mask": one.response_mask,
                "log_probs": one.response_logprobs,
            }
            for one in outputs
        ]
        note = {"kind": sample["session_id"] % 8, "life": os.environ[FOLDER_OF_A_LIFE], "spans": spans, "rows": rows}
        with open(os.environ[DIARY], "a") as file:  # noqa: ASYNC230
            file.write(json.dumps(note) + "\n")
        return outputs

    async def _inside(self, sampling_params: dict[str, Any], **sample: Any) -> AgentLoopOutput:
        dialogue = Dialogue(self, sample["raw_prompt"], sampling_params)
        answer = await dialogue.ask()
        for _ in range(TURNS - 1):
            if not dialogue.is_full:
                await recorded(till.pay, len(answer), wait_s=till.NEVER_NEEDED_S)
                await dialogue.tell(CHECK["content"])
            if not dialogue.is_full:
                answer = await dialogue.ask()
        output = dialogue.output()
        output.reward_score = float(sample["session_id"] // 2 % 2)
        output.extra_fields["reward_extra_info"] = {"acc": output.reward_score}
        return output
