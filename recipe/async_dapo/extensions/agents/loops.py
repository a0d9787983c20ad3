"""How the workers of a run make calls, and keep agent loops."""

from collections.abc import Callable
from functools import partial
from typing import Any

from omegaconf import DictConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from ...config.options import AsyncDAPOConfig
from ...core.trajectory import Trajectory
from ...core.users_errors import shortened
from ...recording import TrajectoryRecorder
from .call_recorder import CallRecorder
from .call_runner import CallRunner
from .kept_loops import KeptLoops


class LoopsOfWorker(CallRunner):
    """The loops of a worker, with their calls.

    Args:
        kept: those that rest there.
        of_calls: arguments of `CallRunner`.
    """

    def __init__(self, kept: KeptLoops, **of_calls: Any) -> None:
        super().__init__(**of_calls)
        self.kept = kept

    def recorder(self, trajectory: Trajectory, *, prompt_uid: str, attempt: str) -> CallRecorder:
        resting = self.kept.recorder_of(trajectory)
        return resting or CallRunner.recorder(self, trajectory, prompt_uid=prompt_uid, attempt=attempt)

    async def run(
        self, make: Callable[[], AgentLoopBase], sampling_params: dict[str, Any], **sample: Any
    ) -> list[AgentLoopOutput]:
        return await self.kept.run(make, sampling_params, **sample)

    async def settle(self, recorder: TrajectoryRecorder) -> None:
        await self.kept.settle(recorder)

    async def end_others(self, wanted: frozenset[str]) -> None:
        await self.kept.end_others(wanted)


def of_worker(
    config: DictConfig, options: AsyncDAPOConfig, *, worker: int, promise: Callable[[str], Any]
) -> LoopsOfWorker:
    """Those of one worker, see `Declared.loops`."""
    turns = config.actor_rollout_ref.rollout.multi_turn
    return LoopsOfWorker(
        KeptLoops(worker=worker, most=options.calls.kept_loops if options.keeps_tokens else 0),
        timeout_s=options.calls.timeout_s,
        journal_limit_bytes=options.calls.journal_limit_mb * 2**20,
        promise=promise,
        worker=worker,
        short_s=options.calls.short_s,
        carries=options.keeps_tokens,
        cut=partial(cut, most=turns.max_tool_response_length, side=turns.tool_response_truncate_side),
    )


def cut(text: str, *, most: int, side: str) -> str:
    """As verl cuts answers of tools (`multi_turn.tool_response_truncate_side`)."""
    return shortened(text, most, head={"left": 0.0, "right": 1.0}.get(side, 0.5))
