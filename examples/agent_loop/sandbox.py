"""An agent loop with a stateful environment: the model writes Python, and an interpreter runs it.

The interpreter is a process that goes on from step to step of the training. Where it is gone, another one is given the
same code again. It is a process and no more: what must not reach your files or network belongs into a container.
"""

import asyncio
import json
import sys
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from recipe.async_dapo.calls import recorded

TURNS = 4
LIMIT_S = 10.0
INTERPRETER = """
import contextlib, io, json, sys
names = {}
for line in sys.stdin:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            exec(json.loads(line), names)
        except Exception as error:
            print(repr(error))
    print(json.dumps(output.getvalue()), flush=True)
"""


class Sandbox:
    """An interpreter that has run all of `code`, in whatever process."""

    def __init__(self) -> None:
        self.code: list[str] = []
        self.process: asyncio.subprocess.Process | None = None
        self._done = 0
        self._is_busy = self._is_closed = False

    async def output(self) -> str:
        """What the last piece of code printed; pieces that this process has not run yet are run before it."""
        self._is_busy = True
        try:
            return await asyncio.wait_for(self._catch_up(), LIMIT_S)
        finally:
            self._is_busy = False
            if self._is_closed:
                await self.close()

    async def _catch_up(self) -> str:
        if self.process is None:
            pipe = asyncio.subprocess.PIPE
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-c", INTERPRETER, stdin=pipe, stdout=pipe
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        printed = b'""'
        while self._done < len(self.code):
            self.process.stdin.write((json.dumps(self.code[self._done]) + "\n").encode())
            printed = await self.process.stdout.readline()
            self._done += 1
        return json.loads(printed)

    async def close(self) -> None:
        """A call that is under way when the loop ends goes on, and ends the process."""
        self._is_closed = True
        if self.process is not None and not self._is_busy and self.process.returncode is None:
            self.process.kill()
            await self.process.communicate()


class Coding(AgentLoopBase):
    keeps_state = True  # stays alive when a training step ends; else it runs again over what is recorded

    async def run(self, sampling_params: dict[str, Any], **sample: Any) -> AgentLoopOutput:
        sandbox = Sandbox()
        try:
            return await self._run(sandbox, sampling_params, list(sample["raw_prompt"]))
        finally:
            await sandbox.close()

    async def _run(
        self, sandbox: Sandbox, sampling_params: dict[str, Any], messages: list[dict[str, str]]
    ) -> AgentLoopOutput:
        request_id = uuid4().hex
        token_ids = await self.ct_build_initial_tokens(messages)
        mask: list[int] = []
        log_probs: list[float] = []
        for turn in range(TURNS):
            output = await self.server_manager.generate(
                request_id=request_id, prompt_ids=token_ids, sampling_params=sampling_params
            )
            merged, mask, log_probs = await self.ct_merge_assistant_token(
                token_ids, output.token_ids, mask, log_probs, assistant_logprobs=output.log_probs
            )
            token_ids = merged.token_ids
            if turn == TURNS - 1 or len(mask) >= self.rollout_config.response_length:
                break
            answer = self.tokenizer.decode(output.token_ids, skip_special_tokens=True)
            sandbox.code.append(answer)
            printed = await recorded(sandbox.output)
            before = [*messages, {"role": "assistant", "content": answer}]
            messages = [*before, {"role": "user", "content": printed}]
            merged, mask, log_probs = await self.ct_merge_context_msg(before, messages, token_ids, mask, log_probs)
            token_ids = merged.token_ids
        limit_tok = self.rollout_config.response_length
        prompt_len_tok = len(token_ids) - len(mask)
        return AgentLoopOutput(
            prompt_ids=token_ids[:prompt_len_tok],
            response_ids=token_ids[prompt_len_tok:][:limit_tok],
            response_mask=mask[:limit_tok],
            response_logprobs=log_probs[:limit_tok],
            num_turns=2 * (turn + 1),
            metrics=AgentLoopMetrics(),
            extra_fields=output.extra_fields,
        )
