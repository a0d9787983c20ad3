"""verl's Megatron worker by itself, on a CPU, with stand-ins for Transformer Engine's layers: it sends the checkpoint's
weights by their names, has the log-probs of transformers' model, trains, and takes a checkpoint of its own back.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import response_from_nested

from ..support import megatron_on_cpu
from ..support.composed_runs import compose_run, valid_overrides, write_files
from ..support.ranks import nested, run_ranks
from ..support.training_rank import ROWS, make_batch

ACTOR = "actor_rollout_ref.actor."
MEGATRON = (
    "model_engine=megatron",
    f"++{ACTOR}megatron.override_transformer_config.gradient_accumulation_fusion=False",  # needs apex
    f"{ACTOR}optim.lr=0.01",
    f"{ACTOR}optim.total_training_steps=10",  # the trainer's own, in a run
    f"{ACTOR}ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
)


class Rank:
    """Of a model that all ranks share."""

    def __init__(self, files: Path) -> None:
        import verl.workers.engine.megatron  # noqa: F401 (registers the engine, which verl did not find before)
        from verl.workers.engine_workers import ActorRolloutRefWorker

        ranks = os.environ["WORLD_SIZE"]
        sizes = (f"trainer.n_gpus_per_node={ranks}", f"{ACTOR}megatron.tensor_model_parallel_size={ranks}")
        config = compose_run([*valid_overrides(files), *MEGATRON, *sizes])
        self.worker: Any = ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
        self.worker.init_model()

    def weights(self) -> dict[str, Tensor]:
        """What the recipe sends to engines."""
        named, _ = self.worker.actor.engine.get_per_tensor_param()
        return {name: weight.clone() for name, weight in named}

    def log_probs(self, data: Any) -> Tensor:
        """The first rank has them alone; as in a run, all get them."""
        data = data.clone(recurse=False)
        tu.assign_non_tensor(data, calculate_entropy=True, compute_loss=False, temperature=1.0)
        found = self.worker.compute_log_prob(data)
        rows = [None] if found is None else [response_from_nested(found["log_probs"], data["response_mask"]).unbind()]
        dist.broadcast_object_list(rows)
        return nested(list(rows[0]))

    def update(self, data: Any) -> None:
        data = data.clone(recurse=False)
        tu.assign_non_tensor(data, calculate_entropy=True, temperature=1.0, epochs=1, seed=0)
        tu.assign_non_tensor(data, global_batch_size=ROWS, mini_batch_size=ROWS, dataloader_kwargs={"shuffle": False})
        self.worker.update_actor(data)


@torch.no_grad()
def expected_log_probs(model: Any, data: Any) -> list[Tensor]:
    found = []
    for tokens, response in zip(data["input_ids"].unbind(), data["responses"].unbind(), strict=True):
        log_probs = model(tokens[None]).logits[0, :-1].float().log_softmax(-1)
        found.append(log_probs.gather(1, tokens[1:, None])[-len(response) :, 0])
    return found


def check_rank(files: Path) -> None:
    megatron_on_cpu.prepare()
    rank, data = Rank(files), make_batch(seed=1)
    model = AutoModelForCausalLM.from_pretrained(files / "model", dtype=torch.bfloat16)
    sent, saved = rank.weights(), model.state_dict()
    assert sent.keys() == saved.keys()
    assert all(torch.equal(sent[name], saved[name]) for name in saved)

    data["old_log_probs"] = rank.log_probs(data)
    for found, expected in zip(data["old_log_probs"].unbind(), expected_log_probs(model, data), strict=True):
        assert float((found - expected).abs().max()) < 0.01  # nats, of bf16

    rank.update(data)
    trained = rank.weights()
    assert all(not torch.equal(trained[name], sent[name]) for name in ("lm_head.weight", "model.norm.weight"))
    rank.worker.save_checkpoint(local_path=str(files / "checkpoint"), global_step=1)
    rank.update(data)
    assert not torch.equal(rank.weights()["lm_head.weight"], trained["lm_head.weight"])
    rank.worker.load_checkpoint(local_path=str(files / "checkpoint"), del_local_after_load=False)
    loaded = rank.weights()
    assert all(torch.equal(loaded[name], trained[name]) for name in trained)


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 2])
def test_megatrons_worker_sends_the_checkpoints_weights_and_has_the_models_log_probs(tmp_path, ranks):
    write_files(tmp_path)
    run_ranks(check_rank, tmp_path, ranks=ranks)
