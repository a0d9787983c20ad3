"""What an agent loop has returned, as groups hold it until they are stored."""

from array import array
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import torch
from verl.experimental.agent_loop import AgentLoopOutput

from ..config.values import ConfigError
from ..core.routes import Routes
from ..core.trajectory import BrokenRecord
from ..engines.routes import array_of, routes_of
from ..record.plain_values import AGENT_LOOP, to_plain
from ..recording import SampledTokens

TIMED = "timed_requests"  # in `extra_fields`: of each of its turns, see `core/trajectory.Timed`


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedOutput:
    """An agent loop's output with its token lists as compact arrays: 9 bytes a response token.

    `stamps`: (policy version, tokens) of the tokens that its mask says the policy has sampled, in order.
    """

    rest: AgentLoopOutput
    stamps: tuple[tuple[int, int], ...]
    prompt_ids: array
    response_ids: array
    response_mask: bytes
    response_logprobs: array
    routes: Routes | None = None  # of all its tokens but the last, or those before the tools' at its end

    @classmethod
    def pack(cls, output: AgentLoopOutput, sampled: SampledTokens) -> "PackedOutput":
        """The next output of a trajectory.

        Raises:
            ConfigError: if training could not see all that the policy has seen, or not know which policy that was, or
                if no checkpoint could hold it.
        """
        if type(output) is not AgentLoopOutput:
            raise ConfigError(
                AGENT_LOOP,
                type(output).__qualname__,
                "a checkpoint holds verl's AgentLoopOutput only: return that, and put what is more into extra_fields",
            )
        to_plain({"extra_fields": output.extra_fields}, source=AGENT_LOOP)  # now rather than when a checkpoint is due
        log_probs = output.response_logprobs
        ids, is_sampled = output.response_ids, output.response_mask
        if log_probs is None:
            if any(is_sampled):
                raise ConfigError(
                    AGENT_LOOP, "response_logprobs", "training needs the log-probs that the engine gave: pass them on"
                )
            log_probs = [0.0] * len(is_sampled)  # the rows of a batch have the same fields
        if not len(ids) == len(is_sampled) == len(log_probs):
            raise ConfigError(
                AGENT_LOOP,
                "response_logprobs",
                f"there are {len(log_probs)} for {len(ids)} response_ids, and a response_mask of {len(is_sampled)}: "
                "each token needs one of each, a tool's 0.0 and 0",
            )
        if sampled.have_routes and output.routed_experts is None:
            raise ConfigError(
                AGENT_LOOP, "routed_experts", "training replays them: pass on those of the engine's last answer"
            )
        start = sampled.found_tok
        try:
            stamps = sampled.stamps_of(list(compress(ids, is_sampled)), list(compress(log_probs, is_sampled)))
        except BrokenRecord as error:
            raise ConfigError(
                AGENT_LOOP,
                "response_mask",
                f"{error}: their policy versions are unknown; mask tokens of tools with 0 and keep those of the engine "
                "as they are",
            ) from error
        timed = sampled.timed_since(start)
        return cls(
            stamps=stamps,
            rest=output.model_copy(
                update={
                    "extra_fields": output.extra_fields | ({TIMED: timed} if timed else {}),
                    "prompt_ids": [],
                    "response_ids": [],
                    "response_mask": [],
                    "response_logprobs": None,
                    "routed_experts": None,
                    "multi_modal_data": None,  # pictures are kept with the prompt
                }
            ),
            prompt_ids=array("i", output.prompt_ids),
            response_ids=array("i", output.response_ids),
            response_mask=bytes(output.response_mask),
            response_logprobs=array("f", log_probs),
            routes=None if output.routed_experts is None else routes_of(np.asarray(output.routed_experts)),
        )

    def fields(self) -> dict[str, Any]:
        """The output as verl's trainer reads it: 1-d tensors, and the rest as it is; verl's own `as_dict` makes the
        tensors of lists, a Python number for each token.
        """
        fields = self.rest.model_copy(update={"reward_score": None}).as_dict()
        fields.pop("multi_modal_data", None)
        fields["prompts"] = torch.tensor(np.asarray(self.prompt_ids), dtype=torch.int64)
        fields["responses"] = torch.tensor(np.asarray(self.response_ids), dtype=torch.int64)
        fields["response_mask"] = torch.tensor(np.frombuffer(self.response_mask, np.uint8), dtype=torch.int64)
        fields["rollout_log_probs"] = torch.tensor(np.asarray(self.response_logprobs), dtype=torch.float32)
        if self.routes is not None:
            fields["routed_experts"] = self._routed_experts(self.routes)
        if self.rest.reward_score is not None:
            fields["rm_scores"] = torch.zeros(len(self.response_ids))
            fields["rm_scores"][-1] = self.rest.reward_score
        return fields

    def _routed_experts(self, routes: Routes) -> torch.Tensor:
        """A row for each token, of zeros where none was recorded, as verl's `as_dict` makes them."""
        shape = (len(self.prompt_ids) + len(self.response_ids), routes.layers, routes.top_k)
        aligned = torch.zeros(shape, dtype=torch.int16)
        rows = array_of(routes)[: len(aligned)]
        aligned[: len(rows)] = torch.tensor(rows.astype(np.int16))
        return aligned
