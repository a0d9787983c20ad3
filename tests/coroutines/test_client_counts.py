"""What engines say of a response's requests reaches the agent loop, added up; what they do not say is not made up."""

import asyncio
from dataclasses import replace

import pytest

from ..support.client_world import ending_of, world
from ..support.scripted_engine import ScriptedEngine, start_server
from ..support.scripted_server import ScriptedServer
from ..support.simulation import simulate

COUNTS = {
    "num_cached_tokens": 16,
    "spec_num_draft_tokens": 8,
    "spec_num_accepted_tokens": 5,
    "spec_num_verify_steps": 2,
}


@pytest.fixture
def telling_servers(monkeypatch) -> None:
    silent = ScriptedServer._output

    def output(self, request, stop_reason):
        told = silent(self, request, stop_reason)
        if stop_reason in ("completed", "aborted"):
            return replace(told, num_preempted=1, extra_fields=told.extra_fields | COUNTS)
        return told

    monkeypatch.setattr(ScriptedServer, "_output", output)


def test_given_a_response_of_two_requests_when_it_is_whole_then_it_has_the_sum_of_their_counts(telling_servers) -> None:
    async def main() -> None:
        it = world()
        first = asyncio.create_task(ending_of(it.generate()))
        await asyncio.sleep(3)
        await it.balancer_handle.stop.remote()
        await first
        await it.balancer_handle.open.remote()
        output = await it.generate()
        assert output.num_preempted == 2
        assert {name: output.extra_fields[name] for name in COUNTS} == {name: 2 * n for name, n in COUNTS.items()}

    simulate(main())


def test_given_servers_that_say_nothing_when_a_response_is_whole_then_it_has_no_counts() -> None:
    async def main() -> None:
        output = await world().generate()
        assert output.num_preempted is None and not COUNTS.keys() & output.extra_fields.keys()

    simulate(main())


def test_given_a_server_when_a_request_ends_then_its_last_output_has_what_vllm_says(monkeypatch) -> None:
    async def main() -> None:
        server = start_server(monkeypatch, ScriptedEngine(6), delivery_tok=4)
        params = {"max_tokens": 100, "logprobs": True}
        piece = await asyncio.create_task(server.generate([7], params, "request"))
        assert piece.stop_reason == "more" and "num_cached_tokens" not in piece.extra_fields
        last = await server.reattach("request")
        assert last.stop_reason == "completed" and last.extra_fields["num_cached_tokens"] == 0

    simulate(main())
