"""Agent loops that have several requests out at once, as those with sub-agents: their records are whole, and their
calls are made once.
"""

import asyncio
from collections import Counter, defaultdict
from random import Random
from typing import Any

import pytest
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from recipe.async_dapo.calls import call_id, recorded
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.engines.load_balancer import GlobalLoadBalancer
from recipe.async_dapo.extensions.agents.kept_loops import KeptLoops
from recipe.async_dapo.recording import prompt_digest

from ....support.client_world import llm_client
from ....support.fakes import FakeHandle, ScriptedServer, token_at
from ....support.rollout_world import Loop, group, recorder, reread, rollout
from ....support.router import router_options
from ....support.simulation import now_s, settle

BRANCHES, TURNS, LENGTH_TOK, WAIT_S = 3, 2, 5, 2.0


class Branching:
    """Branches that talk side by side, begun in another order each time, with code of their own and a call in between.

    All of them make the same call, which answers something else each time.
    """

    side_by_side = True

    def __init__(self, client: Any, random: Random, service: "Service") -> None:
        self._client, self._random, self._service = client, random, service

    async def run(self, sampling_params: dict[str, Any], *, trajectory: Trajectory) -> list[AgentLoopOutput]:
        whose = trajectory.session_id
        numbers = list(range(BRANCHES))
        self._random.shuffle(numbers)
        tasks = [asyncio.create_task(self._talk([whose, number])) for number in numbers]
        try:
            said = await asyncio.gather(*tasks)  # the first that is interrupted ends it
        finally:
            for task in tasks:
                task.cancel()
        rows = [said[numbers.index(number)] for number in range(BRANCHES)]
        await recorder().put_first(turn for row in rows for turn in row)
        return [_output([token for _, ids, _ in row for token in ids]) for row in rows]

    async def _talk(self, names: list[int]) -> list[tuple[bytes, list[int], list[float]]]:
        row = []
        for turn in range(TURNS):
            prompt = [100 * names[0] + 10 * names[1] + turn + 1]
            said = await self._client.generate("request", prompt_ids=prompt, sampling_params={"logprobs": True})
            row.append((prompt_digest(prompt), said.token_ids, said.log_probs))
            await asyncio.sleep(self._random.uniform(0, WAIT_S))
            self._service.answers[*names, turn].add(await recorded(self._service.act, "look"))
        return row


class KeptBranching(Branching):
    keeps_state = True


class Service:
    """Outside of the run: it outlives every process of it."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()  # by their ids
        self.answers: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)  # that each place has had

    async def act(self, what: str) -> int:
        self.made[call_id()] += 1
        answer = self.made.total()
        await asyncio.sleep(WAIT_S / 4)
        return answer


def _output(token_ids: list[int]) -> AgentLoopOutput:
    return AgentLoopOutput(
        prompt_ids=[1],
        response_ids=token_ids,
        response_mask=[1] * len(token_ids),
        response_logprobs=[-token / 1000 for token in token_ids],
        metrics=AgentLoopMetrics(),
    )


class Life:
    """One process of a worker, with its server."""

    def __init__(
        self,
        *,
        kind: type[Branching],
        seed: int,
        most: int,
        service: Service,
        version: int = 0,
        earlier_tok: int = 0,
    ) -> None:
        self.earlier_tok = earlier_tok  # sampled in the lives before
        self.random = Random(seed)
        self.server = ScriptedServer(LENGTH_TOK)
        self.server.global_steps = version
        handle = FakeHandle(self.server, latency_s=lambda _: self.random.uniform(0.0, 0.2))
        self.balancer = FakeHandle(GlobalLoadBalancer({"a": handle}, router_options(256)))
        self.kept = KeptLoops(most=most)
        client = llm_client(self.balancer)

        async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
            return await self.kept.run(lambda: kind(client, self.random, service), {}, trajectory=trajectory)  # type: ignore[arg-type, return-value]

        self.loop: Loop = loop

    async def round(self, held: PromptGroup, stop_s: float) -> bool:
        """Whether the group has come to its end in a round that stops then."""
        await self.balancer.open.remote()
        running = rollout(self.loop, kept=self.kept)
        task = asyncio.create_task(running.run(held))
        await asyncio.wait({task}, timeout=stop_s)
        stopped_s = now_s()
        running.running.interrupt()
        await self.balancer.stop.remote()
        outcome = await task
        assert now_s() - stopped_s < WAIT_S / 2, "the stop waits for requests, not for the loop's own code"
        assert not self.server.running
        sampled = sum(map(len, self.server.generated.values()))
        assert held.generated_tok == self.earlier_tok + sampled, "all that was sampled is in the record"
        self.diverged_tok = running.take_report().counts.diverged_tok
        self.server.global_steps += 1
        return outcome is not None


@pytest.mark.parametrize("kind", [Branching, KeptBranching])
@pytest.mark.parametrize("seed", range(20))
async def test_given_stops_and_losses_at_any_time_then_every_branch_has_its_own_tokens_and_none_is_lost(
    kind: type[Branching], seed: int
) -> None:
    random, held, service, kills = Random(seed), group(), Service(), 0
    life = Life(kind=kind, seed=seed, most=random.choice([2, 99]), service=service)
    for rounds in range(200):
        before_tok = held.generated_tok
        is_ended = await life.round(held, random.uniform(0.0, 8.0))
        assert life.diverged_tok == 0 and held.generated_tok >= before_tok
        if is_ended:
            break
        what = random.choice(["next round", "to the object store", "to another worker", "killed"])
        if what == "to the object store":
            held = held.take_tokens()
        if what in ("to another worker", "killed"):
            await life.kept.end_others(frozenset())
        if what == "killed":
            held = reread(held)
            kills += 1
            version, earlier_tok = life.server.global_steps, held.generated_tok
            life = Life(kind=kind, seed=rounds, most=99, service=service, version=version, earlier_tok=earlier_tok)
        await asyncio.sleep(random.uniform(0.0, 3.0))
    assert len(service.made) == len(service.answers) == 4 * BRANCHES * TURNS
    assert kills or set(service.made.values()) == {1}, "only a kill loses what a call came to"
    assert all(len(answers) == 1 for answers in service.answers.values()), "a place always has the same answer"
    for trajectory in held.trajectories:
        assert trajectory.generated_tok == BRANCHES * TURNS * LENGTH_TOK, "each turn was sampled once"
        for branch, output in enumerate(trajectory.outputs):
            prompts = [[100 * trajectory.session_id + 10 * branch + turn + 1] for turn in range(TURNS)]
            wanted = [token_at(prompt, k) for prompt in prompts for k in range(LENGTH_TOK)]
            assert list(output.response_ids) == wanted
            assert sum(tokens for _, tokens in output.stamps) == len(wanted)
    await life.kept.end_others(frozenset())
    await settle()


@pytest.mark.parametrize("is_kept", [False, True])
async def test_given_a_loop_that_gives_its_only_request_up_at_the_stop_then_the_stop_does_not_wait_for_its_own_code(
    is_kept: bool,
) -> None:
    class GivingUp:
        side_by_side = True
        keeps_state = is_kept

        async def run(self, sampling_params: dict[str, Any], **_: Any) -> list[AgentLoopOutput]:
            async def ask() -> None:
                with current.request_out():
                    await asyncio.sleep(5)

            current = recorder()
            asking = asyncio.create_task(ask())
            await asyncio.sleep(2)
            asking.cancel()
            await asyncio.sleep(100)
            return []

    kept, held = KeptLoops(most=99), group()

    async def loop(_: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        return await kept.run(GivingUp, {})  # type: ignore[arg-type, return-value]

    running = rollout(loop, kept=kept)
    task = asyncio.create_task(running.run(held))
    await asyncio.sleep(1)
    running.running.interrupt()
    assert await task is None
    assert now_s() == pytest.approx(2.0)
    await kept.end_others(frozenset())
