"""Callers of our server on vLLM's own output processor, and what they have to get from it."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from verl.workers.rollout.replica import TokenOutput

from recipe.async_dapo.engines.server import AsyncDAPOServer

from .fakes import log_prob_of, token_at
from .scripted_engine import ScriptedEngine, start_server
from .simulation import now_s, settle

LENGTH_TOK = 9


def generate(server: AsyncDAPOServer, request_id: str = "request", **params: Any) -> asyncio.Task[TokenOutput]:
    params = {"max_tokens": 100, "logprobs": True, **params}
    return asyncio.create_task(server.answer("generate", [7], params, request_id), name="remote generate")


class StampedEngine(ScriptedEngine):
    """Knows under which policy version each token was sampled."""

    server: AsyncDAPOServer

    def __init__(self, **about: Any) -> None:
        super().__init__(LENGTH_TOK, **about)
        self.versions: dict[str, list[int]] = {}

    def _step(self, name: str, request: Any) -> Any:
        self.versions.setdefault(name.removesuffix("-internal"), []).append(self.server.global_steps)
        return super()._step(name, request)


class Callers:
    """Ask a server for answers, and fetch them piece by piece."""

    server_class = AsyncDAPOServer

    def __init__(self, monkeypatch: pytest.MonkeyPatch, random: Random, *, stream_interval: int) -> None:
        self.random, self.stream_interval = random, stream_interval
        self.delivery_tok = random.choice([1, 4, 1_000_000])
        self.engine = StampedEngine(stream_interval=stream_interval)
        self.server = self.engine.server = start_server(
            monkeypatch, self.engine, self.server_class, delivery_tok=self.delivery_tok
        )
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.limits_tok: dict[str, int] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.outputs: dict[str, list[TokenOutput]] = {}
        self.in_server: set[str] = set()
        self.may_end_early: set[str] = set()
        self.forgotten: set[str] = set()  # nobody looks at what comes of them
        self.sent_back: set[str] = set()  # they would have begun under the next weights

    @property
    def sampled_tok(self) -> int:
        return sum(map(len, self.engine.sampled.values()))

    def ask(self) -> None:
        name = f"request-{len(self.tasks)}"
        self.limits_tok[name] = min(LENGTH_TOK, self.random.choice([5, 100, 100]))
        self.tasks.append(asyncio.create_task(self._fetch(name), name=f"remote {name}"))

    async def _fetch(self, name: str) -> None:
        outputs = self.outputs[name] = []
        params = {"max_tokens": self.limits_tok[name], "logprobs": True}
        call = self.server.answer("generate", [7], params, name)
        while not outputs or outputs[-1].stop_reason == "more":
            self.in_server.add(name)
            outputs.append(await (call if not outputs else self.server.reattach(name)))
            self.in_server.discard(name)

    async def abort(self, *, forget: bool) -> None:
        """One of all that were ever asked for, or the next one, whose abort overtakes it."""
        name = f"request-{self.random.randint(0, len(self.tasks))}"
        forget = forget and bool(self.engine.sampled.get(name))
        self.may_end_early.add(name)
        self.forgotten |= {name} if forget else set()
        await self.server.abort_requests([name, "unknown"], forget=forget)
        await asyncio.sleep(1.3)  # at worst: admission and the first token
        assert name not in self.in_server or not self.is_open.is_set()

    async def stop(self, mode: str) -> None:
        self.is_open.clear()
        sampled_tok = {name: len(tokens) for name, tokens in self.engine.sampled.items()}
        begun = {name for name, count in sampled_tok.items() if count > self.stream_interval}  # the front end knows
        self.may_end_early |= self.limits_tok.keys() - (set() if mode == "abort" else begun)
        self.sent_back |= set() if mode == "abort" else {name for name in self.in_server if not sampled_tok.get(name)}
        began_s = now_s()
        await self._stop(mode)
        await settle()
        assert now_s() <= began_s + 1.25 + 1e-3
        assert mode == "hold" or not self.in_server, "a caller was not told"
        assert mode != "abort" or not self.engine.core
        before_tok = self.sampled_tok
        await asyncio.sleep(self.random.choice([0.0, 1.5, 50.0]))
        assert (await generate(self.server, f"late-{now_s()}")).stop_reason == "aborted"
        assert self.sampled_tok == before_tok, "a stopped engine went on"

    async def open(self) -> None:
        if self.random.random() < 0.7:
            await self.server.set_global_steps(self.server.global_steps + 1)
        await self._open()
        self.is_open.set()

    async def _stop(self, mode: str) -> None:
        assert mode == "abort"
        await self.server.stop_generation()

    async def _open(self) -> None:
        await self.server.allow_generation()

    async def live(self, modes: Sequence[str]) -> None:
        """Ask, abort and stop, in any order and in these modes; then all is over."""
        for _ in range(12):
            match self.random.choice(["ask", "ask", "ask", "abort", "forget", "stop"]):
                case "ask":
                    self.ask()
                case "stop":
                    for _ in range(self.random.choice([1, 1, 2])):
                        await self.stop(self.random.choice(modes))
                    await self.open()
                case event:
                    await self.abort(forget=event == "forget")
            await asyncio.sleep(self.random.choice([0.0, 0.1, 0.25, 0.6, 1.0, 3.0]))
        async with asyncio.timeout(100):
            await asyncio.gather(*self.tasks)
        await asyncio.sleep(100)
        assert not self.engine.core and not self.engine.output_processor.request_states, "nobody will fetch it"
        for name in self.limits_tok:
            self.check(name)
            assert (await self.server.reattach(name)).stop_reason == "unknown"
        before_s = now_s()
        await self.server.stop_generation()
        assert now_s() == before_s, "nothing is left to wait for"

    def check(self, name: str) -> None:
        """Every token was delivered once, in order, with its log-prob and version; the rest was not wanted."""
        outputs, versions = self.outputs[name], self.engine.versions.get(name, [])
        tokens = [token for output in outputs for token in output.token_ids]
        assert tokens == [token_at([7], k) for k in range(len(tokens))] and len(tokens) <= len(versions)
        log_probs = [log_prob for output in outputs for log_prob in output.log_probs]
        assert log_probs == pytest.approx([log_prob_of(token) for token in tokens])
        routes = [output.extra_fields["routes"] for output in outputs if output.token_ids]
        places = [place for _, rows in routes for place in rows.flatten()]
        assert places == list(range(len(tokens))) and all(rows[0, 0, 0] == start for start, rows in routes)
        stamps = [v for output in outputs for v, n in output.extra_fields["segments"] for _ in range(n)]
        assert stamps == sorted(stamps) and len(stamps) == len(tokens)
        assert self.stream_interval > 1 or stamps == versions[: len(tokens)]
        pieces = [output for output in outputs if output.stop_reason == "more"]
        assert all(len(piece.token_ids) < self.delivery_tok + self.stream_interval for piece in pieces)
        if name in self.sent_back:
            assert not tokens and len(versions) <= self.stream_interval, "an engine goes on with it for nobody"
        is_whole = len(tokens) == self.limits_tok[name]
        assert is_whole or name in self.may_end_early, "it was not interrupted"
        assert name in self.forgotten or outputs[-1].stop_reason == ("completed" if is_whole else "aborted")
        if is_whole and name not in self.forgotten:
            assert outputs[-1].extra_fields["finish_reason"] == ("stop" if len(tokens) == LENGTH_TOK else "length")
