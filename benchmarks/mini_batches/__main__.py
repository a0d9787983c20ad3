"""Seconds of a step's updates on two training ranks, by verl's cut of a step and by ours.

python -m benchmarks.mini_batches

verl's own FSDP worker (CPU, gloo, float32, a thread a rank), a small model, and steps of four mini-batches whose
lengths are log-normal. The cuts take turns, on the same trajectories. *By name* has our mini-batches, and each rank
takes its part of one as it comes: the model ends where ours ends it, up to the order of summation. Writes `runs.csv`.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from tensordict import NonTensorStack, TensorDict
from torch.distributed.tensor import DTensor
from transformers import Qwen3Config, Qwen3ForCausalLM
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions
from verl.workers.engine_workers import ActorRolloutRefWorker

from recipe.async_dapo.core.mini_batches import balanced_order
from recipe.async_dapo.startup.overrides import compose_overrides
from recipe.async_dapo.training import one_update
from recipe.async_dapo_lab.quickstart.activation import PLUGIN_PATH, cpu_environment
from recipe.async_dapo_lab.quickstart.tiny_model import build_tokenizer

GROUPS, N, UPDATES, RANKS = 16, 8, 4, 2
MEDIAN_TOK, SIGMA, LIMIT_TOK, PROMPT_TOK, VOCABULARY = 150, 0.9, 1024, 8, 99
ROWS = GROUPS * N // UPDATES  # of a mini-batch
FOLDER = Path("assets", "mini_batches")
equal_parts = partial(get_seqlen_balanced_partitions, equal_size=True)


def make_step(seed: int) -> TensorDict:
    """A step's trajectories, each with the field of the loss."""
    rng = np.random.default_rng(seed)
    lens = np.minimum(rng.lognormal(np.log(MEDIAN_TOK), SIGMA, GROUPS * N), LIMIT_TOK).astype(int)
    ids = [torch.from_numpy(rng.integers(4, VOCABULARY, PROMPT_TOK + length)) for length in lens]
    responses = [row[PROMPT_TOK:] for row in ids]
    rows: dict[str, list[torch.Tensor]] = {
        "input_ids": ids,
        "prompts": [row[:PROMPT_TOK] for row in ids],
        "responses": responses,
        "position_ids": [torch.arange(len(row)) for row in ids],
        "response_mask": [torch.ones(len(row), dtype=torch.int64) for row in responses],
        "loss_mask": [torch.ones(len(row), dtype=torch.int64) for row in responses],
        "old_log_probs": [torch.full((len(row),), -4.6) for row in responses],
        "advantages": [torch.full((len(row),), float(rng.normal())) for row in responses],
    }
    nested = {name: torch.nested.as_nested_tensor(values, layout=torch.jagged) for name, values in rows.items()}
    return TensorDict({**nested, "multi_modal_inputs": NonTensorStack(*({} for _ in ids))}, batch_size=[len(ids)])


def in_turn(own: Sequence[int], parts: int) -> list[list[int]]:
    return np.arange(len(own)).reshape(parts, -1).tolist()


def orders(work: Sequence[int], seed: int) -> dict[str, list[int]]:
    """Of each cut, the order in which the ranks get the trajectories."""
    names = [np.random.default_rng([seed, group]).bytes(8).hex() for group in range(GROUPS)]
    keys = [f"{names[row // N]}_{row % N}_0" for row in range(GROUPS * N)]
    told: dict[str, Any] = {"padding": [False] * len(keys), "ranks": RANKS, "rows": ROWS}
    return {
        "verl": [row for part in equal_parts(work, RANKS) for row in part],
        "by name": balanced_order(keys, [1] * len(keys), **told, partition=in_turn),
        "recipe": balanced_order(keys, work, **told, partition=equal_parts),
    }


class Rank:
    """A training rank."""

    def __init__(self, files: Path) -> None:
        actor = "actor_rollout_ref.actor"
        self._config = compose_overrides(
            [
                "trainer.device=cpu",
                f"trainer.n_gpus_per_node={RANKS}",
                f"actor_rollout_ref.model.path={files}/model",
                f"data.train_batch_size={GROUPS}",
                f"actor_rollout_ref.rollout.n={N}",
                "++actor_rollout_ref.model.override_config.attn_implementation=sdpa",
                f"{actor}.strategy=fsdp2",
                f"{actor}.fsdp_config.dtype=float32",
                f"++{actor}.fsdp_config.mixed_precision={{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}}",
                f"{actor}.fsdp_config.use_torch_compile=False",
                f"{actor}.use_torch_compile=False",
                f"{actor}.ppo_mini_batch_size={GROUPS // UPDATES}",
                f"{actor}.ppo_micro_batch_size_per_gpu=1",
                "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
            ]
        )
        torch.manual_seed(0)
        self._worker = ActorRolloutRefWorker(self._config.actor_rollout_ref, role="actor")
        self._worker.init_model()
        self._worker.set_loss_fn(one_update.loss_of(self._config))
        self._before = [p.detach().clone() for p in self._worker.actor.engine.module.parameters()]

    def update(self, data: TensorDict, order: Sequence[int]) -> tuple[float, torch.Tensor]:
        """From the model as it was at the start. Returns seconds, and all parameters."""
        parameters = list(self._worker.actor.engine.module.parameters())
        with torch.no_grad():
            for parameter, before in zip(parameters, self._before, strict=True):
                parameter.copy_(before)
        self._worker.actor.engine.optimizer.state.clear()
        own = len(order) // RANKS
        data = tu.index_select_tensor_dict(data, list(order[dist.get_rank() * own :][:own]))
        tu.assign_non_tensor(data, calculate_entropy=False, temperature=1.0, epochs=1, seed=0)
        tu.assign_non_tensor(data, global_batch_size=ROWS, mini_batch_size=ROWS, dataloader_kwargs={"shuffle": False})
        dist.barrier()
        began_s = time.perf_counter()
        self._worker.update_actor(data)
        dist.barrier()
        took_s = time.perf_counter() - began_s
        full = [p.full_tensor() if isinstance(p, DTensor) else p for p in parameters]
        return took_s, torch.cat([p.detach().flatten() for p in full])


def measure(rank: int, steps: int, files: str, output: str) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "DIST_INIT_METHOD": f"file://{files}/meeting"}
    os.environ |= {"MASTER_ADDR": "unused", "MASTER_PORT": "0"}
    torch.set_num_threads(1)
    worker, rows = Rank(Path(files)), []
    for step in range(steps + 1):  # the first one warms up
        data = make_step(step)
        tokens = data["input_ids"].offsets().diff().tolist()
        cuts = orders(calculate_workload(torch.tensor(tokens)).tolist(), seed=step)
        names = list(cuts)[step % len(cuts) :] + list(cuts)[: step % len(cuts)]
        found = {name: worker.update(data, cuts[name]) for name in names}
        for name, (took_s, parameters) in found.items():
            of_ranks = np.array(tokens)[cuts[name]].reshape(RANKS, UPDATES, -1).sum(2)  # tokens
            row = {"step": step, "cut": name, "seconds": round(took_s, 3)}
            row["busiest_over_mean"] = round(float(of_ranks.max(0).sum() / of_ranks.mean(0).sum()), 4)
            row["of_each_update"] = " ".join(f"{wait:.3f}" for wait in of_ranks.max(0) / of_ranks.mean(0))
            row["parameters_off"] = f"{float((parameters - found['recipe'][1]).abs().max()):.2g}"
            rows.append(row)
    if rank == 0:
        frame = pd.DataFrame(rows)
        frame[frame["step"] > 0].to_csv(Path(output, "runs.csv"), index=False)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--output", type=Path, default=FOLDER)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    os.environ.update(cpu_environment(os.environ))  # of the ranks, which take over `sys.path`, too
    sys.path.append(str(PLUGIN_PATH))
    shape = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 2, "head_dim": 64}
    with tempfile.TemporaryDirectory() as files:
        build_tokenizer().save_pretrained(f"{files}/model")
        torch.manual_seed(0)
        config = Qwen3Config(vocab_size=VOCABULARY, num_attention_heads=4, num_key_value_heads=2, **shape)
        Qwen3ForCausalLM(config).save_pretrained(f"{files}/model")
        torch.multiprocessing.spawn(measure, args=(args.steps, files, str(args.output)), nprocs=RANKS)
    rows = pd.read_csv(args.output / "runs.csv").pivot(index="step", columns="cut")
    print(pd.read_csv(args.output / "runs.csv").groupby("cut")[["seconds", "busiest_over_mean"]].mean().round(3))
    print("recipe over verl, step by step:", (rows["seconds"]["recipe"] / rows["seconds"]["verl"]).round(3).to_list())


if __name__ == "__main__":
    main()
