"""A trajectory of an agent that only knows an address and a key: its requests, and what became of them.

    server (its own tasks)        session                            agent loop's task
        ask(request) -----------> a task in the loop's context:      waits for the agent to end
                                  render, generate, read
        reply or refusal <------- its future

A round that stops under a request leaves it waiting, and it goes on in the next one: `generate` sees to that. While no
request is out the agent runs code of its own, and the trajectory counts as one that is in a call.
"""

import asyncio
import contextvars
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from ...calls import make_recorded
from ...config.values import ConfigError
from ...core.trajectory import BrokenRecord
from ...core.users_errors import Cause, TrajectoryFailed
from ...recording import current_recorder, prompt_digest
from .conversation import Answer, Row, conversation_class
from .messages import CONTEXT_FULL, Message, Refused, Reply, Request
from .replies import ReplyReader
from .result import scored
from .template import Template
from .turn_ledger import TurnLedger

MOST_REFUSED = 20  # requests in a row; of the gateway's own errors, in all


def over() -> Refused:
    return Refused(410, "the session is over: its agent has ended, or was ended")


@dataclass(slots=True, eq=False)
class Exchange:
    """A request that has come in, and its reply."""

    key: str  # the same for requests that ask the same
    reply: "asyncio.Future[Reply]"
    task: asyncio.Task[None] | None = None
    answer: Answer | None = None
    clients: int = 0  # that wait for the reply
    delivered: int = 0  # clients that have had it

    @property
    def is_lost(self) -> bool:
        """No client has had the reply, and none waits for it: the one that asked has gone, and may ask again."""
        return not self.clients and not self.delivered


class Session:
    """The requests of one trajectory.

    Args:
        loop: whose engines, tokenizer and builder it has; the session is made in its task.
        sampling_params: of all turns.
        reader: of the model's replies.
        template: see `Conversation`.
        max_turns: more are refused [count].
        ignored: what matches these in a prompt may differ when the agent runs again.
    """

    def __init__(
        self,
        loop: AgentLoopBase,
        sampling_params: dict[str, Any],
        *,
        reader: ReplyReader,
        template: Template,
        max_turns: int,
        ignored: Sequence[re.Pattern[str]],
    ) -> None:
        self._loop, self._params, self._reader, self._max_turns = loop, sampling_params, reader, max_turns
        self._ignored = ignored
        self._recorder: Any = current_recorder.get()  # a `CallRecorder` of extensions/agents
        self._context = contextvars.copy_context()  # of the loop: the engines' client finds the record in it
        self._request_id = uuid4().hex
        self.conversation = conversation_class()(
            loop.continuous_token_builder,
            template=template,
            written=self._written,
            show=self._as_before if ignored else None,
        )
        self._exchanges: dict[str, list[Exchange]] = {}
        self._names: Counter[str] = Counter()
        self._clients = self._turns = 0  # that wait, that run
        self._in_call = ExitStack()
        self._clock = asyncio.get_running_loop().time
        self._own_since_s, self._own_s, self._heard_s = self._clock(), 0.0, self._clock()
        self._is_over = False
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.posted: Any = None  # the agent's result, if it has posted one
        self.counts: Counter[str] = Counter()
        self.last_refusal = ""
        self._refused_in_a_row = 0
        self._parted_at = ""
        self._begin_wait()

    # ---------------------------------------------------------------- what the server asks

    async def ask(self, request: Request, *, is_again: bool = False) -> Exchange:
        """A request whose reply is there, and counts as delivered; the one of before, if a client has sent it again.

        Args:
            is_again: the client says so.

        Raises:
            Refused: with the reason.
        """
        if self._is_over:
            raise over()
        self.counts["requests"] += 1
        try:
            exchange = self._exchange_of(request, is_again=is_again)
            exchange.clients += 1
            self._count_clients(1)
            try:
                await asyncio.shield(exchange.reply)
            finally:
                exchange.clients -= 1
                self._count_clients(-1)
        except Refused as refused:
            self.refuse(refused)
            raise
        self._refused_in_a_row = 0
        self._deliver(exchange, 1)  # at once: until then an equal request would be taken for the same one, sent again
        return exchange

    def post(self, result: Any) -> None:
        """The agent's result, while it runs.

        Raises:
            Refused: if it has no score.
        """
        if scored(result) is None:
            raise Refused(400, "this has no reward: post a number, or an object with `reward`")
        self.posted = result

    def undelivered(self, exchange: Exchange) -> None:
        """A client has gone before it had the whole reply."""
        self._deliver(exchange, -1)

    def _deliver(self, exchange: Exchange, change: int) -> None:
        exchange.delivered += change
        if exchange.answer is not None:
            exchange.answer.is_heard = exchange.delivered > 0

    def _exchange_of(self, request: Request, *, is_again: bool) -> Exchange:
        said, key = self._key_of(request)
        same = self._exchanges.setdefault(key, [])
        before = next((exchange for exchange in same if exchange.is_lost), same[-1] if is_again and same else None)
        if before is not None:
            self.counts["resent"] += 1
            return before
        exchange = Exchange(key, asyncio.get_running_loop().create_future())
        exchange.reply.add_done_callback(lambda reply: reply.cancelled() or reply.exception())  # it may have no reader
        same.append(exchange)
        answering = self._answer(exchange, request, said)  # they are let go with it: each has the whole history
        own = self._context.copy()  # what has been generated before a call is no other turn's
        exchange.task = asyncio.create_task(answering, name="turn of an agent", context=own)
        return exchange

    def _key_of(self, request: Request) -> tuple[list[str], str]:
        said = self.conversation.meanings(request.messages)
        asked = json.dumps([said, request.tools, request.max_tok, request.stop], sort_keys=True)
        return said, blake2b(asked.encode(), digest_size=16).hexdigest()

    def refuse(self, refused: Refused) -> None:
        """A request is refused: an agent that goes on asking for what it does not get is ended."""
        self.counts["refused"] += 1
        self.last_refusal = str(refused)
        self._refused_in_a_row += 1
        if self._refused_in_a_row >= MOST_REFUSED:
            self._fail(TrajectoryFailed("agent_refused", Cause(f"{MOST_REFUSED} refused requests in a row: {refused}")))

    def note_error(self, refused: Refused) -> None:
        """An error of the gateway's own is a refusal, too. A reply that is there and cannot be written ends a row of
        refusals whenever it is asked for, so errors are counted over the whole session.
        """
        self.counts["errors"] += 1
        self.refuse(refused)
        if self.counts["errors"] >= MOST_REFUSED:
            self._fail(TrajectoryFailed("agent_refused", Cause(f"{MOST_REFUSED} requests failed: {refused}")))

    def _fail(self, error: Exception) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)
            self.failure.exception()  # the loop may have ended by itself

    # ---------------------------------------------------------------- turns

    async def _answer(self, exchange: Exchange, request: Request, said: list[str]) -> None:
        reply = exchange.reply
        try:
            await self.record_is_here()
            self._turns += 1
            self._in_call.close()
            try:
                answered = await self._turn(exchange, request, said)
            finally:
                self._turns -= 1
                if not self._turns:
                    self._begin_wait()
        except asyncio.CancelledError:
            given_up = None if self._recorder is None else self._recorder.given_up
            if given_up is not None:  # its record is full, say
                self._fail(given_up)
            if not reply.done():
                reply.set_exception(over() if given_up is None else Refused(410, f"the session is over: {given_up}"))
            raise
        except Refused as refused:
            self._exchanges[exchange.key].remove(exchange)
            reply.set_exception(refused)
        except Exception as error:  # of the run, not of the request: the loop ends with it
            reply.set_exception(Refused(500, "the run has failed"))
            self._fail(error)
        else:
            reply.set_result(answered)

    async def _turn(self, exchange: Exchange, request: Request, said: list[str]) -> Reply:
        if not request.messages or request.messages[-1]["role"] == "assistant":
            raise Refused(400, "the last message must not be the assistant's: answers cannot be begun for the model")
        if len(self.conversation.answers) + self._turns > self._max_turns:
            raise Refused(400, f"the session has had its {self._max_turns} turns", CONTEXT_FULL)
        self._reader.check_tools(request.tools)  # sooner than when its calls are read
        answer = await self.conversation.begin(request.messages, said, request.tools)
        prompt_ids = answer.prompt_ids
        left_tok = self._left_tok(answer, len(prompt_ids))
        if left_tok <= 0:
            since_tok = len(prompt_ids) - answer.root_tok
            what = f"{answer.root_tok} tokens before the first answer, and {since_tok} since"
            raise Refused(400, f"this is beyond the model's maximum context length: {what}", CONTEXT_FULL)
        limit_tok = min(request.max_tok or left_tok, left_tok)
        answer.digest = prompt_digest(prompt_ids)
        digest = answer.digest.hex()[:18]
        name = f"{digest}{self._names[digest]}"
        self._names[digest] += 1
        await self._generate(answer, request, prompt_ids, limit_tok)
        reply = await self._reader.read(
            name, request, answer.token_ids, answer.log_probs, prompt_tok=len(prompt_ids), limit_tok=limit_tok
        )
        self.conversation.end(answer, reply.message)
        exchange.answer = answer
        return reply

    async def _generate(self, answer: Answer, request: Request, prompt_ids: list[int], limit_tok: int) -> None:
        params = self._params | {"max_tokens": limit_tok}
        if request.stop:
            params["stop"] = list(request.stop)
        if request.tools and self._reader.stop_token_ids:
            params["stop_token_ids"] = self._reader.stop_token_ids
        try:
            output = await self._loop.server_manager.generate(
                request_id=self._request_id, prompt_ids=prompt_ids, sampling_params=params
            )
        except ConfigError as error:
            if not request.stop:
                raise
            raise Refused(400, str(error)) from error  # stop strings do not go with drafts, say
        if self._recorder is not None and self._recorder.parted_at == answer.digest and not self._parted_at:
            self._parted_at = str(request.messages[-1]["content"])
        answer.token_ids, answer.log_probs = list(output.token_ids), list(output.log_probs or ())
        answer.extra_fields, answer.experts = dict(output.extra_fields), output.routed_experts

    def _left_tok(self, answer: Answer, prompt_tok: int) -> int:
        """Room for the answer. A history that an agent has written anew may be longer than a prompt of the data: what
        is bounded is the response, and the sum of prompt and response.
        """
        rollout = self._loop.rollout_config
        left_tok = rollout.response_length - (prompt_tok - answer.root_tok)
        context_tok = getattr(self._loop.server_manager, "context_tok", math.inf)
        return int(min(left_tok, min(rollout.prompt_length + rollout.response_length, context_tok) - prompt_tok))

    # ---------------------------------------------------------------- when an agent runs again

    def _written(self, text: str) -> str:
        for pattern in self._ignored:
            text = pattern.sub("", text)
        return text

    async def _as_before(self, parent: Answer | None, messages: list[Message], said: list[str]) -> list[Message]:
        """The messages that were rendered here when the agent ran before, if they differ in what is ignored only."""
        behind = b"" if parent is None else prompt_digest(parent.all_ids)
        return await make_recorded("prompt", {"behind": behind, "said": said}, lambda: messages)

    async def record_is_here(self) -> None:
        """Wait, over a stop: meanwhile nothing can be asked, recorded or counted."""
        if self._recorder is not None:
            await self._recorder.is_here()

    def what_differed(self) -> str:
        """What the agent has asked for in place of what it asked for when it ran before; empty if nothing is lost."""
        recorder = self._recorder
        lost = [] if recorder is None else recorder.trajectory.turns[recorder.next_turn :]
        return self._parted_at if any(turn.generated_tok for turn in lost) else ""

    # ---------------------------------------------------------------- time

    def _begin_wait(self) -> None:
        """No request is out: the agent runs code of its own, and the trajectory needs no engine."""
        if self._recorder is not None and not self._is_over:
            self._in_call.enter_context(self._recorder.in_calls)

    def _count_clients(self, change: int) -> None:
        now_s = self._heard_s = self._clock()
        if not self._clients:
            self._own_s += now_s - self._own_since_s
        self._clients += change
        self._own_since_s = now_s

    @property
    def own_s(self) -> float:
        """Time that the agent has spent outside of requests."""
        return self._own_s + (0.0 if self._clients else self._clock() - self._own_since_s)

    @property
    def silent_s(self) -> float:
        """Time since its last request."""
        return 0.0 if self._clients else self._clock() - self._heard_s

    # ---------------------------------------------------------------- its end

    async def close(self) -> None:
        """Requests that are out are given up."""
        self._is_over = True
        exchanges = [exchange for same in self._exchanges.values() for exchange in same]
        tasks = [exchange.task for exchange in exchanges if exchange.task is not None]
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks)
        finally:  # this wait may be cancelled as well
            for exchange in exchanges:
                if not exchange.reply.done():  # its task was cancelled before it began
                    exchange.reply.set_exception(over())
            self._in_call.close()

    @property
    def has_rows(self) -> bool:
        """Whether there is anything to be trained."""
        return any(True for _ in self.conversation.rows())

    async def outputs(self) -> tuple[list[AgentLoopOutput], TurnLedger]:
        """An output for each row, of a session that is closed.

        Raises:
            BrokenRecord: if what was sampled and what is trained do not agree.
        """
        rows = list(self.conversation.rows())
        if self._recorder is not None:
            await self.record_is_here()
            turns = ((one.digest, one.token_ids, one.log_probs) for row in rows for one in row.trained)
            await self._recorder.put_first(turns)
        limit_tok = self._loop.rollout_config.response_length
        sampled = None
        if self._recorder is not None:
            asked = self._recorder.trajectory.turns[: self._recorder.next_turn]
            sampled = [turn.generated_tok for turn in asked]
        ledger = TurnLedger.of(rows, limit_tok=limit_tok, sampled=sampled)
        if not ledger.closes:
            raise BrokenRecord(f"the turns of a session do not add up: {ledger}")
        return [self._output(row, limit_tok) for row in rows], ledger

    def _output(self, row: Row, limit_tok: int) -> AgentLoopOutput:
        return AgentLoopOutput(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids[:limit_tok],
            response_mask=row.mask[:limit_tok],
            response_logprobs=row.log_probs[:limit_tok],
            num_turns=len(row.last.messages),
            metrics=AgentLoopMetrics(),
            routed_experts=row.last.experts,
            extra_fields=row.last.extra_fields,
        )
