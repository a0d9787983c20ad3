"""An agent loop around a program that speaks an API: starts the agent, serves its requests, and hands on its rows."""

import asyncio
import contextvars
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

from omegaconf import DictConfig, OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from ...core.users_errors import Cause, KnownPlaces, TrajectoryFailed
from ...recording import current_recorder
from .conversation import conversation_class
from .options import AgentOptions
from .replies import reader_class
from .result import METRIC, scored
from .session import Session
from .start_up import check_agent, check_trainable, program_of, server_of
from .template import Template

logger = logging.getLogger(__name__)

_logged = KnownPlaces()  # of this worker
_templates: "WeakKeyDictionary[Any, Template]" = WeakKeyDictionary()  # by tokenizer: it costs a few renderings


class BlackBoxAgent(AgentLoopBase):
    """Runs an agent that knows an address and a key, and nothing of training.

    Args:
        options: see `AgentOptions`.
    """

    keeps_state = True
    always_kept = True  # an agent whose tools take longer than a round would never get on else
    side_by_side = True
    shows_pictures = False

    def __init__(self, *args: Any, **options: Any) -> None:
        parts = {name: options.pop(name) for name in list(options) if name not in AgentOptions.names()}
        super().__init__(*args, **parts)
        self._options = AgentOptions.of(options)
        self.replayable = self._options.replayable
        self._reader = reader_class()(
            self.tokenizer,
            parser=self._options.parser,
            model_type=parts.get("hf_model_type"),
            default=self.rollout_config.multi_turn.format,
        )
        check_trainable(self.config)  # a copy may lack what asks `check_entry` at start-up

    @classmethod
    def scores_itself(cls, options: dict[str, Any]) -> bool:
        return options.get("reward", AgentOptions.reward) == "agent"

    @classmethod
    def check_entry(cls, options: dict[str, Any], config: DictConfig) -> list[str]:
        """At start-up, where the copy has `extensions/checks`: see `start_up.py`."""
        return check_agent(options, config)

    async def run(self, sampling_params: dict[str, Any], **sample: Any) -> list[AgentLoopOutput]:
        options = self._options
        server = await self._server()
        session = Session(
            self,
            sampling_params,
            reader=self._reader,
            template=self._template(),
            max_turns=options.max_turns,
            ignored=options.ignored_patterns,
        )
        key = server.open(session)
        context = contextvars.copy_context()
        context.run(current_recorder.set, None)  # what the agent does itself is in no record
        agent = asyncio.create_task(self._agent(server.address, key, sample), name="agent", context=context)
        failure: BaseException | None = None
        try:
            failure = await self._watched(session, agent)
        finally:
            server.close(key)
            agent.cancel()
            try:
                await asyncio.wait({agent})
                if not agent.cancelled():
                    agent.exception()
            finally:  # this wait may be cancelled as well
                await session.close()
        try:
            if failure is not None and not _is_an_agents(failure):
                raise failure
            return await self._scored(session, None if failure else agent.result(), failure)
        except Exception:
            await session.record_is_here()
            self._count(session, {"gateway/failed_sessions": 1})
            raise

    async def _server(self) -> Any:
        """Where the agent asks."""
        return await server_of(self._options).at(self._options.host)

    def _template(self) -> Template:
        if self.tokenizer not in _templates:
            found = conversation_class().template_of(self.continuous_token_builder, self.tokenizer)
            _templates[self.tokenizer] = found
        return _templates[self.tokenizer]

    async def _agent(self, address: str, key: str, sample: dict[str, Any]) -> Any:
        """Its result."""
        return await program_of(self._options).run(address, key, sample)

    async def _watched(self, session: Session, agent: "asyncio.Task[Any]") -> BaseException | None:
        """Wait for the agent's end, or its limits. Returns what it, or the run, has failed of."""
        options = self._options
        while not agent.done():
            left_s = min(options.time_limit_s - session.own_s, options.silence_s - session.silent_s)
            if left_s <= 0:
                return _too_late(session, options)
            await asyncio.wait({agent, session.failure}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if session.failure.done():
                return session.failure.exception()
        if agent.cancelled():
            return TrajectoryFailed("agent_failed", Cause("its agent has cancelled itself"))
        return agent.exception()

    async def _scored(self, session: Session, result: Any, failure: TrajectoryFailed | None) -> list[AgentLoopOutput]:
        """Its rows, with the score that the agent has given itself.

        Raises:
            TrajectoryFailed: if it has none, and options do not say otherwise.
        """
        options = self._options
        said = session.posted if session.posted is not None else result
        given = scored(said) if options.reward == "agent" else None
        if failure is None and not session.has_rows:
            what = f"; its last one was refused: {session.last_refusal}" if session.last_refusal else ""
            failure = TrajectoryFailed("agent_without_turn", Cause(f"its agent has had no reply to any request{what}"))
        if failure is None and given is None and options.reward == "agent":
            what = f"its agent has ended without a reward: {said!r:.200}"
            failure = TrajectoryFailed("agent_without_result", Cause(what))
        filtered_by = self._filtered_by()
        if failure is None and given is not None and filtered_by not in given[1]:
            what = f"its agent's result has only {sorted(given[1])}, and groups are filtered by {filtered_by}"
            remedy = "return this field too, or set algorithm.filter_groups.metric to one of those"
            failure = TrajectoryFailed("agent_without_result", Cause(f"{what}: {remedy}"))
        if failure is not None and not (session.has_rows and options.scores(failure.reason)):
            raise failure
        has_score = options.reward == "function" or (given is not None and filtered_by in given[1])
        if failure is not None and not (has_score and options.scores_what_there_is(failure.reason)):
            given = 0.0, {METRIC: 0.0, filtered_by: 0.0}
        outputs, ledger = await session.outputs()
        if differed := session.what_differed():
            self._log_differed(differed)
        tokens = {f"gateway/{name}_tokens": count for name, count in asdict(ledger).items()}
        self._count(session, {"gateway/rows": len(outputs), "gateway/zero_sessions": failure is not None} | tokens)
        if given is not None:
            outputs[-1].reward_score, outputs[-1].extra_fields["reward_extra_info"] = given
        return outputs

    def _filtered_by(self) -> str:
        """The field of a result that groups are filtered by."""
        groups = OmegaConf.select(self.config, "algorithm.filter_groups")
        return METRIC if groups is None or not groups.enable else groups.metric

    def _count(self, session: Session, ended: Mapping[str, float]) -> None:
        recorder: Any = current_recorder.get()
        if recorder is not None:
            has_failed = bool(ended.get("gateway/failed_sessions") or ended.get("gateway/zero_sessions"))
            name = f"agent {self._options.name}, its own code"
            recorder.note_own_code(name, session.own_s, is_failed=has_failed)
            counts = {f"gateway/{name}": session.counts[name] for name in ("requests", "resent", "refused", "errors")}
            chains = session.conversation.new_chains.total()
            always = {"gateway/sessions": 1, "gateway/failed_sessions": 0, "gateway/new_chains": chains}
            recorder.count(always | counts | dict(ended))

    def _log_differed(self, differed: str) -> None:
        name = self._options.name
        if _logged.is_new(Cause(name)):
            logger.warning(
                "agent %s has asked for something else when it ran again, and what it had generated from there on is "
                "lost (async_dapo/partial/diverged_tokens); its first other message: %.300r. If it has a time or a "
                "path in it, name a pattern of these in `ignored`",
                name,
                differed,
            )


def _is_an_agents(failure: BaseException) -> TypeGuard[TrajectoryFailed]:
    """Whether an agent has failed; else the run has, its engines or its record."""
    return isinstance(failure, TrajectoryFailed) and failure.reason.startswith("agent_")


def _too_late(session: Session, options: AgentOptions) -> TrajectoryFailed:
    if session.own_s >= options.time_limit_s:
        return TrajectoryFailed(
            "agent_timeout", Cause(f"its agent has taken {options.time_limit_s} s beside its turns")
        )
    return TrajectoryFailed("agent_silent", Cause(f"its agent has asked for nothing for {options.silence_s} s"))
