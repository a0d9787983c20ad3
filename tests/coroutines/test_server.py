"""The server on vLLM's own output processor: what comes back is what was sampled, and nothing goes on after a stop."""

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from verl.workers.rollout.replica import RolloutMode, TokenOutput
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
from vllm.platforms.interface import DeviceCapability

from recipe.async_dapo.core.concurrency import EngineLoad
from recipe.async_dapo.engines import started_server
from recipe.async_dapo.engines.load_meter import LoadMeter
from recipe.async_dapo.engines.server import AsyncDAPOServer
from recipe.async_dapo.weights.stream import CUSTOM_OPTIONS

from ..support.fakes import log_prob_of, token_at
from ..support.scripted_engine import ScriptedEngine, start_server
from ..support.simulation import at_each, now_s, settle

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

    def __init__(self, monkeypatch: pytest.MonkeyPatch, random: Random, *, stream_interval: int) -> None:
        self.random, self.stream_interval = random, stream_interval
        self.delivery_tok = random.choice([1, 4, 1_000_000])
        self.engine = StampedEngine(stream_interval=stream_interval)
        self.server = self.engine.server = start_server(monkeypatch, self.engine, delivery_tok=self.delivery_tok)
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
        await self.server.stop_generation(mode)
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
        await self.random.choice([self.server.allow_generation, self.server.go_on])()
        self.is_open.set()

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


@pytest.mark.slow
@pytest.mark.parametrize("stream_interval", [1, 2, 4])
@at_each(range(60))
async def test_given_any_requests_aborts_stops_and_versions_then_each_token_is_delivered_once_and_a_stop_holds(
    monkeypatch, stream_interval, number: int
) -> None:
    random = Random(f"{number} {stream_interval}")
    it = Callers(monkeypatch, random, stream_interval=stream_interval)
    modes = random.choice([["abort"], ["hold"], ["hold", "abort"]])  # the last of engines that get weights in turn
    for _ in range(12):
        match random.choice(["ask", "ask", "ask", "abort", "forget", "stop"]):
            case "ask":
                it.ask()
            case "stop":
                for _ in range(random.choice([1, 1, 2])):
                    await it.stop(random.choice(modes))
                await it.open()
            case event:
                await it.abort(forget=event == "forget")
        await asyncio.sleep(random.choice([0.0, 0.1, 0.25, 0.6, 1.0, 3.0]))
    async with asyncio.timeout(100):
        await asyncio.gather(*it.tasks)
    await asyncio.sleep(100)
    assert not it.engine.core and not it.engine.output_processor.request_states, "nobody will fetch it"
    for name in it.limits_tok:
        it.check(name)
        assert (await it.server.reattach(name)).stop_reason == "unknown"
    before_s = now_s()
    await it.server.stop_generation()
    assert now_s() == before_s, "nothing is left to wait for"


async def test_given_an_engine_core_that_hangs_when_its_server_is_pinged_then_there_is_no_answer(monkeypatch) -> None:
    engine = ScriptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine)
    await server.ping()
    monkeypatch.setattr(engine, "is_sleeping", asyncio.Event().wait)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(server.ping(), 60)


async def test_given_a_stop_while_an_engine_is_told_to_go_on_then_nothing_more_is_let_in(monkeypatch) -> None:
    """No event of the property comes in the middle of that call."""
    engine = ScriptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine)
    await server.stop_generation("hold")

    async def resume_slowly() -> None:
        await asyncio.sleep(1)

    monkeypatch.setattr(engine, "resume_generation", resume_slowly)
    going_on = asyncio.create_task(server.go_on())
    await asyncio.sleep(0.5)
    await server.stop_generation("hold")
    await going_on
    assert (await generate(server)).stop_reason == "aborted"


@pytest.mark.parametrize("pause_s", [0.0, 0.2])
async def test_given_requests_that_are_held_when_all_are_aborted_then_one_that_is_being_admitted_is_not_waited_for(
    monkeypatch, pause_s: float
) -> None:
    """The engine, which takes no step, would never give its first token."""
    engine = ScriptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine)
    pause = engine.pause_generation

    async def pause_slowly(**options: Any) -> None:
        await asyncio.sleep(pause_s)
        await pause(**options)

    monkeypatch.setattr(engine, "pause_generation", pause_slowly)
    held = generate(server, "held")
    await asyncio.sleep(3)
    admitted = generate(server, "admitted")
    await asyncio.sleep(0.01)
    holding = asyncio.create_task(server.stop_generation("hold"))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(5):
        await server.stop_generation("abort")
        await holding
    assert [len((await task).token_ids) for task in (held, admitted)] == [2, 0]
    assert not engine.core
    await server.go_on()
    assert (await generate(server, "next")).stop_reason == "completed"


async def test_given_two_policy_versions_when_generating_then_no_request_shares_cached_prefixes_with_the_other(
    monkeypatch,
) -> None:
    engine = ScriptedEngine(2)
    server = start_server(monkeypatch, engine)
    await generate(server, "old")
    await server.set_global_steps(1)
    await generate(server, "new")
    await server.generate([7], {"max_tokens": 1, "logprobs": True}, "of an old trajectory", began=0)
    assert engine.salts[0] == engine.salts[2] != engine.salts[1]


async def test_given_an_engine_that_dies_when_requests_are_out_or_come_later_then_the_server_ends_with_it(monkeypatch):
    class Exited(Exception):
        pass

    def end(dead: str) -> None:
        raise Exited

    monkeypatch.setattr("recipe.async_dapo.engines.started_server._end", end)
    engine = ScriptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine)
    call = generate(server)
    await asyncio.sleep(3)
    engine.die()
    for ended in (call, generate(server, "later")):
        with pytest.raises(Exited):
            await ended


@pytest.mark.parametrize(
    ("mode", "is_policy", "scraped", "node", "listens_on"),
    [
        (RolloutMode.HYBRID, True, False, "10.0.0.7", "127.0.0.1"),
        (RolloutMode.HYBRID, True, False, "fd00::7", "::1"),
        (RolloutMode.HYBRID, True, True, "10.0.0.7", "10.0.0.7"),
        (RolloutMode.STANDALONE, True, False, "10.0.0.7", "127.0.0.1"),
        (RolloutMode.STANDALONE, False, False, "10.0.0.7", "10.0.0.7"),  # a reward model: asked over HTTP
    ],
)
def test_given_an_engine_when_it_starts_then_its_endpoint_is_on_loopback_unless_others_ask_it(
    monkeypatch, mode, is_policy, scraped, node, listens_on
) -> None:
    bound = []

    async def run_server(self: vLLMHttpServer, args: object) -> None:
        bound.append(self._server_address)
        self._server_port = 8000

    async def main() -> None:
        engine = ScriptedEngine(1)
        server = start_server(monkeypatch, engine)
        server.rollout_mode, server._server_address, server.replica_rank = mode, node, 1
        if not is_policy:
            server.config.custom = None
        server.config.prometheus = SimpleNamespace(enable=scraped)
        await server.run_server(None)
        assert server.get_server_address() == (node, 8000), "the server has another name"

    monkeypatch.setattr(vLLMHttpServer, "run_server", run_server)
    monkeypatch.setattr(started_server.LoadMeter, "attach", lambda engine: None)
    asyncio.run(main())
    assert bound == [listens_on]


@pytest.mark.parametrize(("told", "level"), [({}, 2), ({"keeps_weights": False}, 2), ({"keeps_weights": True}, 1)])
def test_an_engine_keeps_its_weights_when_it_sleeps_if_it_is_told_to(monkeypatch, told, level) -> None:
    server = start_server(monkeypatch, ScriptedEngine(1))
    server.config.custom[CUSTOM_OPTIONS] |= told
    assert server._resolve_sleep_level() == level


class CountingMeter(LoadMeter):
    """Reports how many loads it was asked for."""

    asked = 0

    @classmethod
    def attach(cls, engine: object) -> "CountingMeter":
        return cls.__new__(cls)

    def load(self) -> EngineLoad:
        self.asked += 1
        return EngineLoad(kv_room_tok=self.asked, max_num_seqs=1)


async def test_a_server_attaches_the_meter_that_it_is_told_and_says_at_a_stop_what_that_reports(monkeypatch) -> None:
    async def run_server(self: vLLMHttpServer, args: object) -> None:
        pass

    monkeypatch.setattr(vLLMHttpServer, "run_server", run_server)
    server = start_server(monkeypatch, ScriptedEngine(1))
    server._server_address, server.replica_rank, server.rollout_mode = "10.0.0.7", 1, RolloutMode.HYBRID
    server.config.custom[CUSTOM_OPTIONS]["meter"] = f"{__name__}.{CountingMeter.__name__}"
    server.config.prometheus = SimpleNamespace(enable=False)
    await server.run_server(None)
    assert isinstance(server._meter, CountingMeter)
    assert await server.stop_generation() == EngineLoad(kv_room_tok=1, max_num_seqs=1)


class AdaptedEngine(ScriptedEngine):
    """Has an adapter from the first update on."""

    asked = 0

    async def list_loras(self) -> set[int]:
        self.asked += 1
        await asyncio.sleep(0.1)
        return {123} if self.policy_version else set()


async def test_given_many_requests_then_an_engine_is_asked_for_its_adapters_once_an_update(monkeypatch) -> None:
    engine = AdaptedEngine(LENGTH_TOK)
    server = start_server(monkeypatch, engine)
    assert await server.engine.list_loras() == set() == await server.engine.list_loras()
    assert engine.asked == 2, "the adapter may come while the version is the same"
    for version in (1, 2):
        engine.policy_version = server.global_steps = version
        found = await asyncio.gather(*(server.engine.list_loras() for _ in range(50)))
        assert found == [{123}] * 50 and await server.engine.list_loras() == {123}
    assert engine.asked == 4


@pytest.mark.parametrize(
    ("capability", "experts", "packs"), [((10, 0), 8, True), ((9, 0), 8, False), ((10, 0), 0, False)]
)
def test_experts_on_blackwell_keep_the_layout_that_weights_are_loaded_into(monkeypatch, capability, experts, packs):
    monkeypatch.setattr(started_server.current_platform, "get_device_capability", lambda: DeviceCapability(*capability))
    server = start_server(monkeypatch, ScriptedEngine(LENGTH_TOK))
    text = SimpleNamespace(num_experts=experts)
    server.model_config.hf_config = SimpleNamespace(get_text_config=lambda: text)
    given: dict[str, Any]
    for given in ({}, {"moe_backend": None}, {"moe_backend": "auto"}):
        arguments = given.copy()
        server._preprocess_engine_kwargs(arguments)
        assert arguments == ({"moe_backend": "triton"} if packs else given)


def test_the_first_engine_says_in_a_line_what_it_is() -> None:
    config = SimpleNamespace(
        use_v2_model_runner=True,
        scheduler_config=SimpleNamespace(async_scheduling=True),
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=[1, 2, 4]),
        cache_config=SimpleNamespace(cache_dtype="auto"),
    )
    said = started_server.in_words(289_000, config)
    assert "second model runner, asynchronous scheduling, CUDA graphs of 3 sizes, KV cache of 289,000 tokens" in said
