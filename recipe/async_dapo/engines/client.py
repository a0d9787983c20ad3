"""The client that agent loops generate through: keeps what comes back, and can be interrupted.

A request that was interrupted is continued by another one, as if there were no seam between them. The engine sees what
was generated as part of the prompt. That changes nothing for temperature, top-p, top-k and the repetition penalty,
which counts the prompt, too. `min_tokens` and `seed` are adapted, and `stop` strings that cross the seam are found
here. Other penalties and grammars look at the response only and would restart, and `extra_args` may mean anything: such
a request is never continued.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl.utils import normalize_token_ids
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from ..config.values import ConfigError
from ..core.trajectory import Trajectory, Turn
from ..recording import TrajectoryRecorder, current_recorder
from .engine_requests import EngineRequests
from .protocol import FOUND
from .routes import routes_of_turn
from .stop_strings import end_at_stop

_OFF: tuple[Any, ...] = (None, 0, 0.0, [], {}, "")
_OVER_THE_RESPONSE = (
    "presence_penalty",
    "frequency_penalty",
    "structured_outputs",
    "guided_decoding",
    "bad_words",
    "thinking_token_budget",
    "repetition_detection",
    "extra_args",
)
_LIMIT_KEYS = ("max_tokens", "max_new_tokens")
_SERVER_OPTIONS = ("image_data", "video_data", "audio_data", "mm_processor_kwargs", "priority")


def not_continued(params: dict[str, Any]) -> list[str]:
    """The parameters that keep a request from being continued."""
    return [name for name in _OVER_THE_RESPONSE if params.get(name) not in _OFF]


def continued(params: dict[str, Any], generated_tok: int, limit_tok: int) -> dict[str, Any]:
    """The parameters of a request that goes on after so many tokens, for so many further ones at most."""
    moved: dict[str, Any] = {"max_tokens": limit_tok}
    if params.get("min_tokens"):  # engines refuse one above the other; a request that reaches its limit has enough
        moved["min_tokens"] = min(max(0, params["min_tokens"] - generated_tok), limit_tok)
    if params.get("seed") is not None:
        moved["seed"] = params["seed"] + generated_tok
    return params | moved


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What an agent loop has asked for.

    Attributes:
        request_id: for sticky routing.
        params: of sampling, without limits.
        options: further arguments of the server's `generate`.
        is_whole: the turn has to come from one request.
        budget_tok: tokens that the turn may have.
    """

    request_id: str
    prompt_ids: list[int]
    params: dict[str, Any]
    options: dict[str, Any]
    is_whole: bool
    budget_tok: int


class AsyncDAPOLLMClient(LLMServerClient):
    """Generates for the trajectory of the running task (`current_recorder`).

    An interrupted request leaves its tokens, log-probs and policy versions in the record and raises
    `TrajectoryInterrupted`; when the trajectory is resumed, recorded turns are answered from the record and the
    unfinished one is continued. Interruption is invisible to the agent loop.

    Args:
        continues: interrupted requests are continued by new ones; else only those that are lost with their server.
        has_old_kv: those that continue them meet what their engine has kept of the trajectory's keys and values.
        refused: parameters of sampling that are, and what is wrong with them.
        rolling: servers stop one at a time for new weights, and may have those of several policy versions.
        one_version: a turn comes from one of them; one that is lost with its server begins anew.
    """

    def __init__(
        self,
        *args: Any,
        cleanup_timeout_s: float,
        continues: bool = False,
        has_old_kv: bool = False,
        refused: Mapping[str, str] | None = None,
        rolling: bool = False,
        one_version: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._continues = continues
        self._has_old_kv = has_old_kv
        self._refused = refused or {}
        self._one_version = one_version
        self.context_tok = math.inf  # of the engines; the worker, which knows the model, sets it
        self._requests = EngineRequests(self._load_balancer, cleanup_timeout_s=cleanup_timeout_s, rolling=rolling)

    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        **kwargs: Any,
    ) -> TokenOutput:
        recorder = current_recorder.get() or TrajectoryRecorder(trajectory=Trajectory(session_id=0))
        prompt_ids = normalize_token_ids(prompt_ids)
        if self._has_old_kv and recorder.prompt_uid:  # an agent loop that runs again draws another id
            request_id = f"{recorder.prompt_uid}/{recorder.trajectory.session_id}"
        unlimited = {key: value for key, value in sampling_params.items() if key not in _LIMIT_KEYS}
        asked = _Asked(
            request_id=request_id,
            prompt_ids=prompt_ids,
            params=unlimited | {"logprobs": True},  # the record needs them, whatever the agent loop asks for
            options={key: kwargs[key] for key in _SERVER_OPTIONS if kwargs.get(key) is not None},
            is_whole=self._must_be_whole(sampling_params),
            budget_tok=self._budget_tok(len(prompt_ids), sampling_params),
        )
        if recorder.rests:
            await recorder.next_round()
        turn = recorder.begin_turn(prompt_ids, kwargs.get("image_data") or ())
        number = recorder.next_turn - 1
        while True:
            is_over = turn.finish_reason is not None or turn.generated_tok >= asked.budget_tok
            if is_over and not recorder.rests:
                break
            if recorder.round_left_tok > 0 and not recorder.rests:
                with recorder.request_out():
                    await self._request(recorder, turn, asked)
                continue
            recorder.stop()  # the turn goes on in the next round
            await recorder.next_round()
            turn = recorder.trajectory.turns[number]  # the record has come back from the pool
        turn.finish_reason = turn.finish_reason or "length"
        counts = dict(turn.counts)
        versions = [segment.policy_version for segment in turn.segments]
        return TokenOutput(
            token_ids=turn.raw_response_ids,
            log_probs=turn.rollout_log_probs if sampling_params.get("logprobs") else None,
            routed_experts=None if turn.routes is None else routes_of_turn(turn, turn.routes),
            stop_reason="completed",
            num_preempted=counts.pop("num_preempted", None),
            extra_fields={
                "global_steps": versions[-1],
                "min_global_steps": min(versions),
                "max_global_steps": max(versions),
                **counts,
            },
        )

    def _must_be_whole(self, sampling_params: dict[str, Any]) -> bool:
        """Whether the turn has to come from one request.

        Raises:
            ConfigError: for what is refused; or cannot be continued, where interrupted requests are.
        """
        for name, why in self._refused.items():
            if sampling_params.get(name) not in _OFF:
                raise ConfigError(f"sampling_params.{name}", sampling_params[name], why)
        named = not_continued(sampling_params)
        if named and self._continues:
            raise ConfigError(
                f"sampling_params.{named[0]}",
                sampling_params[named[0]],
                "counts over the whole response, and an interrupted one is continued by a new request; choose "
                "async_dapo.rollout_strategy=consistent, or leave it out",
            )
        return bool(named) or self._one_version

    async def _request(self, recorder: TrajectoryRecorder, turn: Turn, asked: _Asked) -> None:
        """One request for the turn's next tokens, counted."""
        if asked.is_whole:
            recorder.lose(turn)
        before_tok = turn.generated_tok
        left_tok = asked.budget_tok - before_tok
        limit_tok = int(min(left_tok, recorder.round_left_tok))
        is_seam = before_tok > 0
        found_tok = turn.counts[FOUND]
        options, stamps = asked.options, recorder.trajectory.stamps
        if self._has_old_kv and stamps:
            options = options | {"began": stamps[0][0]}
        context, params = asked.prompt_ids + turn.raw_response_ids, continued(asked.params, before_tok, limit_tok)
        group = recorder.prompt_uid or None
        try:
            if not await self._requests.advance(turn, asked.request_id, context, params, options, group=group):
                recorder.stop()
            if turn.finish_reason == "length" and limit_tok < left_tok:  # the round's limit, not that of the turn
                turn.finish_reason = None
        finally:
            recorder.round_left_tok -= turn.generated_tok - before_tok
            if is_seam:
                found_tok = turn.counts[FOUND] - found_tok
                recorder.counts.found_tok += found_tok
                recorder.counts.reprefilled_tok += len(context) - found_tok
                if asked.params.get("stop"):
                    end_at_stop(turn, before_tok, asked.params, self.tokenizer.decode)

    def _budget_tok(self, prompt_len_tok: int, sampling_params: dict[str, Any]) -> int:
        """Tokens the turn may generate in all, as verl's server counts them for a fresh request."""
        rollout = self.config.actor_rollout_ref.rollout
        limit = min(rollout.response_length, rollout.prompt_length + rollout.response_length - prompt_len_tok)
        own = [int(sampling_params[key]) for key in _LIMIT_KEYS if key in sampling_params]
        return int(max(1, min(own[0] if own else limit, self.context_tok - prompt_len_tok)))
