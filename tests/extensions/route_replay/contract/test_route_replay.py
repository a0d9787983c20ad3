"""Router replay on verl's FSDP worker (CPU, float32): tokens take the experts that they are told, in each pass."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from torch import Tensor
from transformers import AutoModelForCausalLM
from verl.workers.engine_workers import TrainingWorker

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.extensions.route_replay import training_worker
from recipe.async_dapo.extensions.route_replay.route_replay import RouteReplay, part_of
from recipe.async_dapo.weights.sender import AsyncDAPOActorRolloutRefWorker, policy_worker
from recipe.async_dapo_lab.gpu_check.families import qwen3_moe

from ....support.composed_runs import CPU_WORKER, compose_run, valid_overrides, write_files
from ....support.ranks import nested, run_ranks
from ....support.training_rank import Rank

LAYERS, EXPERTS, TOP_K, PROMPT_TOK = 2, 8, 2, 4
LENS = (5, 1, 9, 7)
ACTOR = "actor_rollout_ref.actor."
OVERRIDES = (
    *CPU_WORKER,
    f"{ACTOR}calculate_entropy=False",
    "actor_rollout_ref.rollout.enable_rollout_routing_replay=True",
)
VARIANTS = [
    ("actor_rollout_ref.model.use_remove_padding=True", "actor_rollout_ref.model.enable_gradient_checkpointing=True"),
    ("actor_rollout_ref.model.use_remove_padding=False", "actor_rollout_ref.model.enable_gradient_checkpointing=False"),
]


def log_probs(model: Any, row_T: Tensor, routes: list[Tensor] | None) -> Tensor:
    """Of a response, [T] nats, by the model alone; `routes` are those of each layer, or the routers' own."""

    def choose(layer: int, _: Any, __: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, _, chosen = output
        chosen = chosen if routes is None else routes[layer]
        scores = logits.softmax(-1).gather(-1, chosen)
        return logits, scores / scores.sum(-1, keepdim=True), chosen

    hooks = [
        block.mlp.gate.register_forward_hook(partial(choose, layer)) for layer, block in enumerate(model.model.layers)
    ]
    with torch.no_grad():
        logits_TV = model(row_T[None], use_cache=False).logits[0, PROMPT_TOK - 1 : -1]
    for hook in hooks:
        hook.remove()
    return logits_TV.log_softmax(-1).gather(-1, row_T[PROMPT_TOK:, None]).squeeze(-1)


def make_batch(vocabulary: int) -> TensorDict:
    """Experts are drawn by chance; the last token has none."""
    torch.manual_seed(1)
    rows = [torch.randint(3, vocabulary, (PROMPT_TOK + length,)) for length in LENS]
    routes = [torch.rand(len(row), LAYERS, EXPERTS).topk(TOP_K).indices.to(torch.int16) for row in rows]
    for chosen in routes:
        chosen[-1] = 0
    names = {
        "prompts": [row[:PROMPT_TOK] for row in rows],
        "responses": [row[PROMPT_TOK:] for row in rows],
        "input_ids": rows,
        "position_ids": [torch.arange(len(row)) for row in rows],
        "response_mask": [torch.ones(length, dtype=torch.int64) for length in LENS],
        "loss_mask": [torch.ones(length, dtype=torch.int64) for length in LENS],
        "advantages": [torch.full((length,), (-1.0) ** length * length) for length in LENS],
        "routed_experts": routes,
    }
    data = TensorDict({name: nested(values) for name, values in names.items()}, batch_size=[len(LENS)])
    data["multi_modal_inputs"] = NonTensorStack(*({} for _ in LENS))
    return data


def trained(files: Path, variant: tuple[str, ...], data: TensorDict) -> tuple[list[Tensor], Tensor, float]:
    """Parameters after a step, log-probs before it, and how far those of the update were from them."""
    config = compose_run([*valid_overrides(files), *OVERRIDES, *variant])
    AsyncDAPOActorRolloutRefWorker.actor_worker_cls = policy_worker({"extensions": ["route_replay"]})
    rank = Rank(config)
    found, _ = rank.log_probs(data)
    step = data.clone(recurse=False)
    step["old_log_probs"] = found
    parameters, metrics = rank.update(step)
    return parameters, found, metrics["actor/ppo_kl"]


def check(files: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(files / "model", dtype=torch.float32)
    data = make_batch(model.config.vocab_size)
    results = [trained(files, variant, data) for variant in VARIANTS]
    for parameters, found, kl in results:
        for row, routes, own in zip(
            *(data[name].unbind() for name in ("input_ids", "routed_experts")), found.unbind(), strict=True
        ):
            chosen = list(routes.long().unbind(1))
            for of_layer in chosen:
                of_layer[-1] = torch.arange(TOP_K)  # of no consequence
            expected, native = (log_probs(model, row, told) for told in (chosen, None))
            torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)
            assert float((own - native).abs().max()) > 1e-3, "other experts give other log-probs"
        assert abs(kl) < 1e-6
        for one, other in zip(parameters, results[0][0], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)  # a step of Adam is 0.01


@pytest.mark.slow
def test_given_routes_then_the_fsdp_worker_s_passes_and_its_update_take_them(tmp_path):
    write_files(tmp_path)
    from recipe.async_dapo_lab.quickstart.tiny_model import build_tokenizer

    torch.manual_seed(0)
    qwen3_moe(build_tokenizer()).save_pretrained(tmp_path / "model")
    run_ranks(check, tmp_path)


def test_given_ranks_that_share_a_sequence_then_each_has_its_rows_and_the_padding_none():
    rows_NK = torch.arange(10).reshape(5, 2)
    parts = [part_of(rows_NK, 3, rank) for rank in range(3)]
    assert torch.equal(torch.cat(parts), torch.cat([rows_NK, torch.zeros(4, 2, dtype=rows_NK.dtype)]))


def test_given_a_model_without_such_routers_then_it_is_refused():
    class Engine:
        module = torch.nn.Linear(1, 1)
        forward_step = None

    with pytest.raises(ConfigError, match="enable_rollout_routing_replay=True: Linear has no router"):
        RouteReplay(Engine())


@pytest.mark.parametrize("forward_only", [True, False])
def test_given_a_reference_policy_whatever_it_says_of_itself_then_only_the_trained_one_replays(
    monkeypatch, forward_only
):
    """verl gives a loss to the trained one alone, and another one later."""
    replaying: list[Any] = []
    monkeypatch.setattr(training_worker, "RouteReplay", replaying.append)
    monkeypatch.setattr(TrainingWorker, "__init__", lambda self: None)
    kind: Any = policy_worker({"extensions": ["route_replay"]})
    reference, trained = kind(), kind()
    for worker, name in ((reference, "reference"), (trained, "trained")):
        worker.engine = FakeEngine(name)
        worker.engine_config = SimpleNamespace(strategy="fsdp2", forward_only=forward_only)
        worker.reset()
    trained.set_loss_fn(max)
    trained.set_loss_fn(min)
    assert [one.name for one in replaying] == ["trained"] and trained.loss_fn is min


class FakeEngine:
    def __init__(self, name: str) -> None:
        self.name = name

    def initialize(self) -> None: ...
