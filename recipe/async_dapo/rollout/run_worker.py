"""An agent loop worker of a run, but for its rounds: how it starts, and how it is connected with what it calls.

`worker.py` has the rounds.
"""

from typing import Any

from omegaconf import DictConfig
from ray.actor import ActorHandle
from verl.experimental.agent_loop import AgentLoopWorker
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.workers.rollout.utils import get_max_position_embeddings

from ..config.extensions import of_copy
from ..config.options import AsyncDAPOConfig
from ..core.trajectory import PromptGroup
from ..data_plane import join_queue
from ..engines.client import AsyncDAPOLLMClient
from ..runtime.logs import show_logs
from ..runtime.shipping import shipping
from ..runtime.verl_version import check_versions
from .agent_loops import AgentLoopFactory, Loops
from .codec import codec
from .group_rollout import GroupRollout
from .import_loops import import_loops
from .reward import ScoringWorker


class RunWorker(AgentLoopWorker):
    """verl's agent loop worker with what its rounds need: options, engines, agent loops, tools, and the function that
    scores. Starts before there is an engine, so that its imports take no time of their own; see `connect`.
    """

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any) -> None:
        show_logs()
        check_versions()
        shipping().localise(config)
        super().__init__(config, *args, **kwargs)
        self._options = AsyncDAPOConfig.from_hydra(self.config)
        codec()  # its extension's imports, and those of agent loops, would hold up the first trajectories
        import_loops(config.actor_rollout_ref.rollout.agent.default_agent_loop)
        join_queue()

    async def attach(self, coordinator: ActorHandle, worker: int, myself: ActorHandle) -> None:
        """Called once by the manager; `worker` is this one's number, and `myself` its handle."""
        self._coordinator = coordinator
        self._worker = worker
        self._loops = Loops(self._options.calls.timeout_s)
        if (own := of_copy("loops")) is not None:
            self._loops = own(
                self.config, self._options, worker=worker, promise=lambda call_id: myself.result_of.remote(call_id)
            )
        self._rollout: GroupRollout | None = None  # of the round
        self._interrupted: dict[str, PromptGroup] = {}  # with the tokens that are still to be parked

    async def result_of(self, call_id: str) -> bytes | None:
        """The result of a call whose trajectory was interrupted here; the worker that continues it waits for this."""
        return await self._loops.result_of(call_id)

    async def connect(self, llm_client: AsyncDAPOLLMClient, reward_workers: list[ActorHandle], attached: None) -> None:
        """Called once by the manager, when there are engines.

        Args:
            attached: what `attach` has returned, which so comes first.
        """
        self.llm_client = llm_client
        self.llm_client.tokenizer = self.tokenizer  # finds stop strings over a seam
        model_tok = get_max_position_embeddings(self.model_config.hf_config)
        self.llm_client.context_tok = self.config.actor_rollout_ref.rollout.max_model_len or model_tok
        self._compute_score = ScoringWorker(reward_workers)._compute_score
        own = of_copy("tools")
        tools = self.tools if own is None else own(self.tools, timeout_s=self._options.calls.timeout_s)
        self._agent_loops = AgentLoopFactory(
            trainer_config=DictConfigWrap(self.config),
            server_manager=self.llm_client,
            tokenizer=self.tokenizer,
            processor=self.processor,
            hf_model_type=self.hf_model_type,
            dataset_cls=self.dataset_cls,
            data_config=DictConfigWrap(self.config.data),
            tools=ToolListWrap(tools),
        )
