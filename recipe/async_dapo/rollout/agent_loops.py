"""verl's agent loops, one per trajectory. The stop ends a loop, and it runs again over its record in the next round.

One that asks for several turns at once says `side_by_side = True`. One with a state of its own would have lost it, and
is refused, but where the copy has `extensions/agents` (`Declared.loops`): there it outlives the stop.
"""

import functools
import platform
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import hydra
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, _agent_loop_registry

from ..calls import RecordedError
from ..config.extensions import AGENTS, declared, not_in_copy
from ..config.values import ConfigError
from ..core.trajectory import RoundCounts, Trajectory
from ..core.users_errors import TrajectoryFailed, in_short
from ..recording import TrajectoryRecorder, current_recorder
from ..runtime.containment import contained, value_of
from ..runtime.time_limit import LimitReached, within

STATE_IS_LOST = f"its loops keep a state over the stop: {not_in_copy(AGENTS, 'choose another class')}"


def has_state(agent_loop: Any) -> bool:
    """Whether an agent loop, or its class, says that running it again over its record does not bring it back."""
    return getattr(agent_loop, "keeps_state", False) or not getattr(agent_loop, "replayable", True)


class AgentLoopFactory:
    """Makes a fresh agent loop for each trajectory, as verl's worker does, without reading its configuration each time.

    Args:
        parts: what verl gives to every agent loop.
    """

    def __init__(self, **parts: Any) -> None:
        self._parts = parts
        self._constructors: dict[str, Callable[..., AgentLoopBase]] = {}

    def make(self, name: str) -> AgentLoopBase:
        """A fresh agent loop.

        Raises:
            ConfigError: for a name that is not registered, an agent loop that cannot be made here, or one with a state
                that this copy cannot keep.
        """
        if name not in self._constructors:
            self._constructors[name] = self._constructor(name)
        try:
            with contained():
                agent_loop = self._constructors[name](**self._parts)
        except Exception as error:  # the same for every prompt: to count them as failed would use up the data
            raise _cannot_be_made(name, error) from error
        if has_state(agent_loop) and AGENTS not in declared():
            raise ConfigError("actor_rollout_ref.rollout.agent", name, STATE_IS_LOST)
        return agent_loop

    def _constructor(self, name: str) -> Callable[..., AgentLoopBase]:
        if name not in _agent_loop_registry:
            raise ConfigError(
                "actor_rollout_ref.rollout.agent.default_agent_loop, or the data set's column agent_name",
                name,
                f"no such agent loop; choose one of {sorted(_agent_loop_registry)}, or register it",
            )
        config = OmegaConf.create(_agent_loop_registry[name])
        arguments = {key: value for key, value in config.items() if key != "_target_"}
        # A nested configuration may hold an object that must not be shared, a key like _args_ is Hydra's to read.
        if any(OmegaConf.is_config(value) or str(key).startswith("_") for key, value in arguments.items()):
            return lambda **parts: hydra.utils.instantiate(config, **parts)
        try:
            with contained():
                return functools.partial(hydra.utils.get_object(config["_target_"]), **arguments)
        except Exception as error:
            raise _cannot_be_made(name, error) from error


async def run_loop(agent_loop: AgentLoopBase, sampling_params: dict[str, Any], **sample: Any) -> list[AgentLoopOutput]:
    output = await value_of(lambda: agent_loop.run(sampling_params, **sample))
    return output if isinstance(output, list) else [output]


def _cannot_be_made(name: str, error: Exception) -> ConfigError:
    return ConfigError(
        "actor_rollout_ref.rollout.agent",
        name,
        f"this agent loop cannot be made on node {platform.node()}: {in_short(error)}; its module, tools and files "
        "must be on every node, and its options right",
    )


class Loops:
    """How agent loops of a worker run, what they ask of anything but the model, and how their answers are scored.

    Args:
        timeout_s: longest time a call may take [s]; None: no limit.
    """

    def __init__(self, timeout_s: float | None = None) -> None:
        self._limit_s = timeout_s

    def recorder(self, trajectory: Trajectory, *, prompt_uid: str, attempt: str) -> TrajectoryRecorder:
        """For a run of a trajectory's loop, or of the loop that rests here; `attempt` as `GroupRollout` has it."""
        return TrajectoryRecorder(trajectory=trajectory, prompt_uid=prompt_uid)

    async def run(
        self, make: Callable[[], AgentLoopBase], sampling_params: dict[str, Any], **sample: Any
    ) -> list[AgentLoopOutput]:
        """Run the loop of the current trajectory, or let it go on."""
        recorder, agent_loop = current_recorder.get(), make()
        assert recorder is not None
        recorder.is_side_by_side = getattr(agent_loop, "side_by_side", False)
        return await run_loop(agent_loop, sampling_params, **sample)

    async def settle(self, recorder: TrajectoryRecorder) -> None:
        """The round is over for a trajectory."""

    async def end_others(self, wanted: frozenset[str]) -> None:
        """End the loops that rest here and are not wanted any more."""

    def take_counts(self) -> RoundCounts:
        """Of what no trajectory has counted, since this was asked last."""
        return RoundCounts()

    async def call(
        self,
        recorder: TrajectoryRecorder,
        name: str,
        arguments: dict[str, Any],
        make: Callable[[], Any],
        *,
        about: Any = None,
    ) -> Any:
        """The answer of a call, which is made again where its loop runs again; see `make_recorded`.

        Raises:
            RecordedError: from what the call has raised, or from `LimitReached`.
        """
        try:
            return await within(self._limit_s, value_of(make))
        except (ConfigError, TrajectoryFailed):
            raise
        except LimitReached as late:
            raise RecordedError(f"no answer within {self._limit_s} s") from late
        except Exception as raised:  # a tool may raise anything: that is its answer
            raise RecordedError(str(raised)) from raised

    async def score(
        self,
        recorder: TrajectoryRecorder,
        responses: Sequence[Sequence[int]],
        make: Callable[[], Coroutine[Any, Any, Any]],
    ) -> Any:
        """What `make` says of these responses. What a stop interrupts is scored again."""
        return await make()

    async def result_of(self, call_id: str) -> bytes | None:
        """What a call that went on over a stop came to; None if it has to be made again."""
        return None
