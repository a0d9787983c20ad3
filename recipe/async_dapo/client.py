"""The client that agent loops generate through: leases a server, keeps what comes back, and can be interrupted."""

import asyncio
import logging
from typing import Any
from uuid import uuid4

from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError
from verl.utils import normalize_token_ids
from verl.utils.rollout_trace import rollout_trace_op
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from .aio import resolve, run_to_completion
from .core.recording import Recorder, append_tokens, current_recorder
from .core.trajectory import Trajectory, Turn

logger = logging.getLogger(__name__)

ABORTED = ("aborted", "abort")


class TrajectoryInterrupted(asyncio.CancelledError):
    """The round stopped under a trajectory; what it has generated is in its record.

    A cancellation, so that agent loops that catch `Exception` do not swallow it and siblings are left alone.
    """


class EnginesUnavailable(RuntimeError):
    """No server is left to generate on: training cannot go on."""


class AsyncDAPOLLMClient(LLMServerClient):
    """Generates for the trajectory of the running task (`current_recorder`).

    An interrupted request leaves its tokens, log-probs and policy versions in the record and raises
    `TrajectoryInterrupted`; when the trajectory is resumed, recorded turns are answered from the record and the
    unfinished one is continued from its tokens. Interruption is invisible to the agent loop.
    """

    def __init__(self, *args: Any, cleanup_timeout_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cleanup_timeout_s = cleanup_timeout_s

    @rollout_trace_op
    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        **kwargs: Any,
    ) -> TokenOutput:
        recorder = current_recorder.get() or Recorder(trajectory=Trajectory(session_id=0))
        prompt_ids = normalize_token_ids(prompt_ids)
        turn = recorder.begin_turn(prompt_ids)
        if turn.finish_reason is None:
            recorder.in_request = True
            try:
                await self._continue_turn(recorder, turn, request_id, prompt_ids, sampling_params, kwargs)
            finally:
                recorder.in_request = False
        if recorder.is_stopping:
            raise TrajectoryInterrupted("stopped after a turn")
        versions = [segment.policy_version for segment in turn.segments]
        return TokenOutput(
            token_ids=turn.raw_response_ids,
            log_probs=turn.rollout_log_probs if sampling_params.get("logprobs") else None,
            stop_reason="completed",
            num_preempted=0,
            extra_fields={
                "global_steps": versions[-1],
                "min_global_steps": min(versions),
                "max_global_steps": max(versions),
            },
        )

    async def _continue_turn(
        self,
        recorder: Recorder,
        turn: Turn,
        request_id: str,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        kwargs: dict[str, Any],
    ) -> None:
        """Request the turn's tokens until the engine ends it, or the budget is spent.

        Raises:
            TrajectoryInterrupted: when the engines stop, or the trajectory has had its tokens for this round.
        """
        budget_tok = self._budget_tok(len(prompt_ids), sampling_params)
        params = {key: value for key, value in sampling_params.items() if key not in _LIMIT_KEYS}
        while turn.finish_reason is None:
            params["max_tokens"] = remaining_tok = budget_tok - turn.generated_tok
            if remaining_tok <= 0:
                turn.finish_reason = "length"
                return
            if recorder.round_limit_tok is not None:
                params["max_tokens"] = min(remaining_tok, recorder.round_limit_tok - recorder.generated_tok)
                if params["max_tokens"] <= 0:
                    raise TrajectoryInterrupted("has generated its tokens of this round")
            before_tok = turn.generated_tok
            if before_tok:
                recorder.reprefilled_tok.append(len(prompt_ids) + before_tok)
            try:
                output = await self._request(turn, request_id, prompt_ids + turn.raw_response_ids, dict(params), kwargs)
            finally:
                recorder.generated_tok += turn.generated_tok - before_tok
            if output is None or (
                output.extra_fields["finish_reason"] == "length" and params["max_tokens"] < remaining_tok
            ):
                continue
            turn.finish_reason = output.extra_fields["finish_reason"]

    async def _request(
        self,
        turn: Turn,
        request_id: str,
        prompt_ids: list[int],
        params: dict[str, Any],
        kwargs: dict[str, Any],
    ) -> TokenOutput | None:
        """One request to one server, recorded in `turn`. None if the server died: the caller tries another."""
        lease_id = uuid4().hex
        server_id = ""
        try:
            try:
                leased = await self._load_balancer.acquire_server.remote(request_id, lease_id)
            except RayTaskError as error:
                raise EnginesUnavailable(str(error.cause)) from error
            if leased is None:
                raise TrajectoryInterrupted("stopped before the request was sent")
            server_id, server = leased
            try:
                output = await self._generate_on(server, lease_id, turn, prompt_ids, params, kwargs)
            except RayActorError:
                logger.error("server %s died under a request; trying another", server_id)
                self._load_balancer.remove_servers.remote([server_id])
                return None
        finally:
            self._load_balancer.release_server.remote(server_id, None, lease_id)
        if output.stop_reason in ABORTED:
            raise TrajectoryInterrupted(f"stopped after {turn.generated_tok} tokens")
        return output

    async def _generate_on(
        self,
        server: ActorHandle,
        lease_id: str,
        turn: Turn,
        prompt_ids: list[int],
        params: dict[str, Any],
        kwargs: dict[str, Any],
    ) -> TokenOutput:
        """Send the request and record what comes back, also when the caller is cancelled meanwhile."""
        kwargs = {key: value for key, value in kwargs.items() if key in _SERVER_KWARGS and value is not None}
        call = asyncio.ensure_future(
            resolve(
                server.generate.remote(
                    prompt_ids=prompt_ids, sampling_params=params, request_id=lease_id, **kwargs
                )
            )
        )
        try:
            output = await asyncio.shield(call)
        except asyncio.CancelledError:
            server.abort_requests.remote([lease_id])
            _record(turn, await run_to_completion(resolve(call), timeout_s=self._cleanup_timeout_s))
            raise
        _record(turn, output)
        return output

    def _budget_tok(self, prompt_len_tok: int, sampling_params: dict[str, Any]) -> int:
        """Tokens the turn may generate in all, as verl's server counts them for a fresh request."""
        for key in _LIMIT_KEYS:
            if key in sampling_params:
                return int(sampling_params[key])
        rollout = self.config.actor_rollout_ref.rollout
        limit = min(rollout.response_length, rollout.prompt_length + rollout.response_length - prompt_len_tok)
        if rollout.max_model_len is not None:
            limit = min(limit, rollout.max_model_len - prompt_len_tok)
        return max(1, limit)


_LIMIT_KEYS = ("max_tokens", "max_new_tokens")
_SERVER_KWARGS = ("image_data", "video_data", "audio_data", "mm_processor_kwargs", "priority")


def _record(turn: Turn, output: TokenOutput) -> None:
    token_ids = list(output.token_ids)
    append_tokens(turn, token_ids, output.log_probs or [0.0] * len(token_ids), output.extra_fields["segments"])
