"""The gateway in the recipe's own classes (rollout, kept loops, recorder, client, balancer) with a scripted model.

The model is a function of its prompt, so that what is trained can be told from anything else. Time is virtual or real:
an agent of a test is a coroutine function, and asks the session itself, or the gateway by a vendor's SDK.
"""

import asyncio
import random
from array import array
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from hashlib import blake2b
from typing import Any

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from recipe.async_dapo.core.outcome import GroupOutcome
from recipe.async_dapo.core.round import GroupEvent
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.engines.load_balancer import GlobalLoadBalancer
from recipe.async_dapo.extensions.agents.kept_loops import KeptLoops
from recipe.async_dapo.extensions.gateway.black_box import BlackBoxAgent
from recipe.async_dapo.extensions.gateway.session import Session
from recipe.async_dapo_lab.quickstart.tiny_model import build_tokenizer

from ....support.client_world import llm_client
from ....support.fakes import FakeHandle, ScriptedServer
from ....support.rollout_world import rollout
from ....support.router import router_options
from ....support.scripted_server import ScriptedRequest

# The quick start's template with tools: their descriptions in front, and calls as the model would write them.
TEMPLATE = (
    "{% if tools %}<|im_start|>s\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'][0] }}\n"
    "{{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>a\n{% endif %}"
)
TOKENIZER = build_tokenizer({"thought_token": "</think>"})
TOKENIZER.chat_template = TEMPLATE
PROMPT_END = TOKENIZER.encode("<|im_start|>a\n")
LETTERS = TOKENIZER.encode("abcdefghijklmnop ")
QUESTION = [{"role": "user", "content": "What is a loon?"}]
RESPONSE_TOK, PROMPT_TOK = 4000, 1000
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


def builder_of(chat_template: str, model_type: str = "qwen3") -> tuple[Any, Any]:
    """verl's builder for this chat template, and its tokenizer."""
    tokenizer = deepcopy(TOKENIZER)
    tokenizer.chat_template = chat_template
    builder = create_continuous_token_builder(
        tokenizer, hf_model_type=model_type, chat_template_kwargs={}, mm_processor_kwargs={}, processor=None
    )
    return builder, tokenizer


Agent = Callable[[Session, dict[str, Any]], Awaitable[Any]]  # in virtual time, without sockets
HttpAgent = Callable[[str, str, dict[str, Any]], Awaitable[Any]]
Says = Callable[[list[int]], list[int]]  # the model: what it answers to a prompt


def letters(prompt_ids: list[int]) -> list[int]:
    """5 to 40 letters, as the prompt has it."""
    chance = random.Random(blake2b(array("i", prompt_ids).tobytes()).digest())
    return [chance.choice(LETTERS) for _ in range(chance.randint(5, 40))] + [TOKENIZER.eos_token_id]


def texts(*answers: str) -> Says:
    """The first answer to a prompt with no assistant's message, the second to one with one, and so on."""

    def say(prompt_ids: list[int]) -> list[int]:
        number = TOKENIZER.decode(prompt_ids).count("<|im_start|>a\n") - 1
        return [*TOKENIZER.encode(answers[min(number, len(answers) - 1)]), TOKENIZER.eos_token_id]

    return say


def prompt_of(token_ids: list[int]) -> int:
    """Where the answer that is being generated begins."""
    ends = range(len(token_ids), 0, -1)
    return next(end for end in ends if token_ids[end - len(PROMPT_END) : end] == PROMPT_END)


class TextServer(ScriptedServer):
    """Says what a function of the prompt says."""

    def __init__(self, says: Says, *, token_s: float) -> None:
        super().__init__(token_s=token_s)
        self._says = says
        self.requests = 0
        self.asked: list[dict[str, Any]] = []  # sampling parameters of each request
        self._left: dict[int, list[int]] = {}

    def _admit(self, prompt_ids: list[int], sampling_params: dict[str, Any]) -> ScriptedRequest:
        self.requests += 1
        self.asked.append(sampling_params)
        end = prompt_of(prompt_ids)
        left = self._says(prompt_ids[:end])[len(prompt_ids) - end :]
        request = ScriptedRequest(prompt_ids, sampling_params["max_tokens"], len(left))
        self._left[id(request)] = left
        return request

    def _next_token(self, request: ScriptedRequest) -> int:
        return self._left[id(request)][len(request.token_ids)]


class NoServer:
    """In the place of a server, in virtual time: an agent of a test asks its session itself."""

    address = "nowhere"

    def __init__(self) -> None:
        self.is_open: dict[str, Session] = {}  # by key

    def open(self, session: Session) -> str:
        key = f"key-{len(self.is_open)}-{id(session)}"
        self.is_open[key] = session
        return key

    def close(self, key: str) -> None:
        del self.is_open[key]


class Box(BlackBoxAgent):
    """Its agent is a test's, and in virtual time it has no sockets."""

    has_sockets = True
    no_server: NoServer  # of its life

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.opened: asyncio.Future[Session] = asyncio.get_running_loop().create_future()

    async def _server(self) -> Any:
        return await super()._server() if self.has_sockets else self.no_server

    @property
    def session(self) -> Session:
        return self.opened.result()

    async def _watched(self, session: Session, agent: "asyncio.Task[Any]") -> Any:
        self.opened.set_result(session)
        return await super()._watched(session, agent)


class Life:
    """One process of a worker, with its engine.

    Args:
        scripted: an agent of the test's; None: that of the options.
        n: trajectories of a group.
        most: loops that are kept, without the gateway's; 0: none is, as with `discard`.
        http: the agents ask by HTTP.
        filtered_by: the metric that groups are filtered by.
        options: of `BlackBoxAgent`.
    """

    def __init__(
        self,
        scripted: Any,
        *,
        says: Says = letters,
        n: int = 4,
        most: int = 64,
        version: int = 0,
        token_s: float = 0.01,
        http: bool = False,
        refused: Mapping[str, str] | None = None,
        filtered_by: str | None = None,
        **options: Any,
    ) -> None:
        self.n, self._agent, self._http, self._filtered_by = n, scripted, http, filtered_by
        self._options = options if options.keys() & {"agent", "command"} else {"agent": "a:b"} | options
        self.server = TextServer(says, token_s=token_s)
        self.server.global_steps = version
        self.balancer = FakeHandle(GlobalLoadBalancer({"a": FakeHandle(self.server)}, router_options(256)))
        client = llm_client(self.balancer, response_length=RESPONSE_TOK, prompt_length=PROMPT_TOK, refused=refused)
        client.tokenizer = TOKENIZER
        self._client = client
        self.kept = KeptLoops(most=most)
        self.boxes: list[Any] = []
        self.no_server = NoServer()
        self.diverged_tok = 0
        self.counted: defaultdict[str, float] = defaultdict(float)  # by the loops
        self.events: list[GroupEvent] = []

    def _make(self) -> Box:
        rollout_config = {
            "response_length": RESPONSE_TOK,
            "prompt_length": PROMPT_TOK,
            "multi_turn": {"format": "hermes"},
        }
        groups = {"filter_groups": {"enable": self._filtered_by is not None, "metric": self._filtered_by}}
        parts = {"actor_rollout_ref": {"rollout": rollout_config}, "data": {}, "algorithm": groups}
        config = OmegaConf.create(parts)
        box = Box(
            trainer_config=DictConfigWrap(config),
            server_manager=self._client,
            tokenizer=TOKENIZER,
            processor=None,
            dataset_cls=None,
            data_config=DictConfigWrap(config.data),
            hf_model_type="qwen3",
            **self._options,
        )
        box.has_sockets, box.no_server, agent = self._http, self.no_server, self._agent
        if agent is not None:

            async def start(address: str, key: str, sample: dict[str, Any]) -> Any:
                if self._http:
                    return await agent(address, key, sample)
                return await agent(await box.opened, sample)

            box._agent = start  # type: ignore[method-assign]
        self.boxes.append(box)
        return box

    async def _loop(self, group: PromptGroup, trajectory: Trajectory) -> list[AgentLoopOutput]:
        names = {"uid": group.uid, "session_id": trajectory.session_id}
        sample = {"raw_prompt": QUESTION, "reward_model": {"ground_truth": "3"}, **names}
        return await self.kept.run(self._make, {"temperature": 1.0, "logprobs": True}, **sample)

    async def round(self, held: PromptGroup, stop_s: float | None = None) -> GroupOutcome | None:
        """What became of the group in a round that stops then; None if it goes on."""

        async def score(outputs: list[AgentLoopOutput], sample: dict[str, Any]) -> None:
            if outputs[-1].reward_score is None:
                outputs[-1].reward_score, outputs[-1].extra_fields["reward_extra_info"] = 0.5, {"acc": 0.5}

        await self.balancer.open.remote()
        notify = lambda uid, event: self.events.append(event)  # noqa: E731
        running = rollout(self._loop, score, kept=self.kept, notify=notify)
        task = asyncio.create_task(running.run(held))
        await asyncio.wait({task}, timeout=stop_s)
        if not task.done():
            running.running.interrupt()
            await self.balancer.stop.remote()
        outcome = await task
        counts = running.take_report().counts
        self.diverged_tok += counts.diverged_tok
        counted = {name: count for name, count in counts.of_extensions.items() if name.startswith("gateway/")}
        for name, count in counted.items():
            self.counted[name] += count
        self.server.global_steps += 1
        return outcome

    async def end(self) -> None:
        """Every session that was opened is closed by then: its key opens nothing, and nothing of it runs on."""
        await self.kept.end_others(frozenset())
        assert not self.no_server.is_open, "a key is still valid"
        assert all(box.session._is_over for box in self.boxes if box.opened.done()), "a session is still open"


def new_group(n: int = 4) -> PromptGroup:
    trajectories = [Trajectory(session_id=number) for number in range(n)]
    return PromptGroup(uid="group", prompt={}, drawn_at_step=1, trajectories=trajectories)


def check_rows(group: PromptGroup, says: Says = letters) -> None:
    """Each run of tokens that is trained is what the model says to what stands before it, and stamped whole."""
    for output in (output for trajectory in group.trajectories for output in trajectory.outputs):
        ids = list(output.prompt_ids) + list(output.response_ids)
        mask = [0] * len(output.prompt_ids) + list(output.response_mask)
        start = 0
        while 1 in mask[start:]:
            start = mask.index(1, start)
            end = mask.index(0, start) if 0 in mask[start:] else len(mask)
            said = says(ids[:start])
            assert ids[start:end] == said[: end - start], TOKENIZER.decode(ids[start:end])
            start = end
        assert sum(tokens for _, tokens in output.stamps) == sum(output.response_mask)


def rows_of(group: PromptGroup) -> list[list[tuple[Any, ...]]]:
    """Prompt, response and mask of each trajectory's rows, in any order."""
    return [
        sorted((tuple(row.prompt_ids), tuple(row.response_ids), bytes(row.response_mask)) for row in trajectory.outputs)
        for trajectory in group.trajectories
    ]


def shown(group: PromptGroup, number: int = 0) -> list[str]:
    """The rows of a trajectory as text, with what is trained in brackets."""
    rows = []
    for row in group.trajectories[number].outputs:
        pieces = zip(row.response_ids, row.response_mask, strict=True)
        marked = "".join(
            f"[{TOKENIZER.decode([token])}]" if mask else TOKENIZER.decode([token]) for token, mask in pieces
        )
        rows.append(marked.replace("][", ""))
    return rows
