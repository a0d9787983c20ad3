"""Seconds between two rounds: unfinished groups from workers to trainer, and out to the workers again.

python -m benchmarks.between_rounds --trajectories 1024 8192 --tokens 8192 --workers 4 --repetitions 3

The same groups travel twice in each repetition: parked before their worker reports (`parked first`), and as the recipe
sends them, parked while the trainer trains (`parked later`). Real coordinator and object store, workers that generate
nothing. `back_s` is from the stop until the trainer has every report, `first_s` from the opening of the next round
until every worker has a group to run; in these two, `between_s`, the engines have no work. `parked_s` is from the stop
until all is parked, which a training hides where it takes longer. `out_s` is from the opening until all groups are
where they run. Adds rows to `runs.csv`, and goes on where it ends.
"""

import argparse
import time
from array import array
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle

from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.round import RoundSpec
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.core.trajectory import PromptGroup, Segment, Trajectory, Turn
from recipe.async_dapo.rollout.coordinator import EarlyStoppingCoordinatorActor
from recipe.async_dapo.rollout.parking import park, park_all, park_interrupted, ticket_of, unpark

GROUP_SIZE = 8
FIRST, LATER = "parked first", "parked later"


class Worker:
    """Has groups after a round, and takes groups in the next one."""

    def __init__(self, coordinator: ActorHandle, number: int) -> None:
        self._coordinator, self._number = coordinator, number
        self._groups: list[PromptGroup] = []
        self._interrupted: dict[str, PromptGroup] = {}

    async def generate(self, count: int, tokens: int) -> None:
        self._groups = [_interrupted(f"{self._number}-{i}", tokens) for i in range(count)]

    async def report(self, by: str) -> list[PromptGroup]:
        groups, self._groups = self._groups, []
        for group in groups:
            if by == FIRST:
                park(group)
            else:
                self._interrupted[group.uid] = group.take_tokens()
        return groups

    async def park(self, uids: list[str]) -> list[Any]:
        return await park_all([self._interrupted.pop(uid) for uid in uids])

    async def take(self, round_id: str, most: int) -> tuple[int, float]:
        """Take groups until there are no more. Returns the tokens that came with them, and when the first was here."""
        first_at = 0.0
        while (ticket := await self._coordinator.take_group.remote(round_id, self._number)) is not None:
            group = await unpark(ticket)
            first_at = first_at or time.monotonic()
            self._groups.append(group)
            await self._coordinator.report_completion.remote(round_id, GroupOutcome.of(group, Verdict.SET_ASIDE))
            if len(self._groups) == most:
                break
        return sum(_tokens_here(group) for group in self._groups), first_at


def measure(*, by: str, trajectories: int, tokens: int, workers: int) -> dict[str, float]:
    """One passage between two rounds."""
    coordinator = EarlyStoppingCoordinatorActor.remote(None)
    actors = [ray.remote(num_cpus=0)(Worker).remote(coordinator, i) for i in range(workers)]
    each = trajectories // GROUP_SIZE // workers
    ray.get([actor.generate.remote(each, tokens) for actor in actors])
    stopped = time.monotonic()
    reports = ray.get([actor.report.remote(by) for actor in actors])
    if by == LATER:
        for actor, report in zip(actors, reports, strict=True):
            park_interrupted(actor, report)
    back_s = time.monotonic() - stopped
    groups = [group for report in reports for group in report]
    tickets = [ticket_of(group) for group in groups]
    parked_s, started = time.monotonic() - stopped, time.monotonic()
    spec = RoundSpec(
        round_id="next",
        stop_rule=StopRuleName.FIFO,
        target_valid_groups=len(groups),
        carried_valid_groups=0,
        drains=False,
    )
    ray.get(coordinator.open_round.remote(spec, tickets))
    arrivals = ray.get([actor.take.remote(spec.round_id, each) for actor in actors])
    out_s = time.monotonic() - started
    first_s = max(first_at for _, first_at in arrivals) - started
    assert sum(arrived for arrived, _ in arrivals) == len(groups) * GROUP_SIZE * tokens, "tokens are missing"
    for actor in (*actors, coordinator):
        ray.kill(actor)
    seconds = {"back_s": back_s, "first_s": first_s, "between_s": back_s + first_s, "out_s": out_s}
    return {name: round(value, 3) for name, value in (seconds | {"parked_s": parked_s}).items()}


def _interrupted(uid: str, tokens: int) -> PromptGroup:
    """A group whose trajectories have generated that many tokens each, and are not at their end."""
    return PromptGroup(
        uid=uid,
        prompt={"raw_prompt": [{"role": "user", "content": "What is it?"}]},
        drawn_at_step=1,
        trajectories=[Trajectory(session_id=i, turns=[_turn(tokens)]) for i in range(GROUP_SIZE)],
    )


def _turn(tokens: int) -> Turn:
    ids, log_probs = array("i", range(tokens)), array("f", [-0.5]) * tokens
    segment = Segment(policy_version=1, token_ids=ids, rollout_log_probs=log_probs)
    return Turn(prompt_digest=b"digest", prompt_len_tok=200, segments=[segment])


def _tokens_here(group: PromptGroup) -> int:
    """Tokens that are here as such, and not only counted."""
    segments = [segment for one in group.trajectories for turn in one.turns for segment in turn.segments]
    return sum(len(segment.token_ids) for segment in segments if isinstance(segment.token_ids, array))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("outputs", "between_rounds"))
    options = parser.parse_args()
    runs = RunsFile(options.output / "runs.csv")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=2_000_000_000)
    for repetition in range(options.repetitions):
        for trajectories in options.trajectories:
            for by in (FIRST, LATER):
                shape = {"trajectories": trajectories, "tokens": options.tokens, "workers": options.workers}
                runs.measure({"by": by, **shape, "repetition": repetition}, partial(measure, by=by, **shape))
    ray.shutdown()


if __name__ == "__main__":
    main()
