"""Updates of two training ranks, four a step, by verl's cut of a step and by this recipe's.

python -m benchmarks.mini_batches

verl's FSDP2 worker on two processes (CPU, gloo, float32, a thread each), without padding, in micro-batches of up to
1,040 tokens. Steps are of 16 prompt groups of 8; lengths are log-normal, each drawn by itself. Every step is trained on
by both cuts, which take turns. One row an update: the tokens of each rank, the most of a rank over the mean, seconds
from the ranks' meeting before it to the one at its end, and CPU seconds of the busiest rank. Writes `runs.csv`.
"""

import argparse
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from tensordict import NonTensorStack, TensorDict
from transformers import Qwen3Config, Qwen3ForCausalLM
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions
from verl.workers.engine_workers import ActorRolloutRefWorker

from recipe.async_dapo.core.mini_batches import balanced_order
from recipe.async_dapo.startup.overrides import compose_overrides
from recipe.async_dapo.training.one_update import loss_of
from recipe.async_dapo_lab.quickstart.activation import PLUGIN_PATH, cpu_environment
from recipe.async_dapo_lab.quickstart.tiny_model import build_tokenizer

RANKS, GROUPS, N, UPDATES = 2, 16, 8, 4
ROWS = GROUPS * N // UPDATES  # of an update
MEDIAN_TOK, SIGMA, LIMIT_TOK, PROMPT_TOK, VOCABULARY = 80, 0.9, 512, 8, 99
ACTOR = "actor_rollout_ref.actor"
OPTIONS = (
    "trainer.device=cpu",
    f"trainer.n_gpus_per_node={RANKS}",
    f"actor_rollout_ref.rollout.n={N}",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    "++actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    f"{ACTOR}.strategy=fsdp2",
    f"{ACTOR}.fsdp_config.dtype=float32",
    f"++{ACTOR}.fsdp_config.mixed_precision={{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}}",
    f"{ACTOR}.fsdp_config.use_torch_compile=False",
    f"{ACTOR}.use_torch_compile=False",
    f"{ACTOR}.ppo_mini_batch_size={GROUPS // UPDATES}",
    f"{ACTOR}.use_dynamic_bsz=True",
    f"{ACTOR}.ppo_max_token_len_per_gpu=1040",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
)


def make_step(seed: int) -> TensorDict:
    """A step's trajectories, with the fields of the loss."""
    rng = np.random.default_rng(seed)
    lens_tok = np.minimum(rng.lognormal(np.log(MEDIAN_TOK), SIGMA, GROUPS * N), LIMIT_TOK).astype(int)
    ids = [torch.from_numpy(rng.integers(4, VOCABULARY, PROMPT_TOK + length)) for length in lens_tok]
    rows = {"input_ids": ids, "position_ids": [torch.arange(len(row)) for row in ids]}
    rows |= {"prompts": [row[:PROMPT_TOK] for row in ids], "responses": [row[PROMPT_TOK:] for row in ids]}
    rows |= {name: [torch.ones(n, dtype=torch.int64) for n in lens_tok] for name in ("response_mask", "loss_mask")}
    rows["old_log_probs"] = [torch.full((n,), -4.6) for n in lens_tok]
    rows["advantages"] = [torch.full((n,), float(rng.normal())) for n in lens_tok]
    nested = {name: torch.nested.as_nested_tensor(values, layout=torch.jagged) for name, values in rows.items()}
    return TensorDict({**nested, "multi_modal_inputs": NonTensorStack(*({} for _ in ids))}, batch_size=[len(ids)])


def cuts(lens_tok: list[int], seed: int) -> dict[str, list[int]]:
    """The order in which ranks get the trajectories: verl's, and this recipe's, whose groups have random names."""
    work, equal = calculate_workload(torch.tensor(lens_tok)), partial(get_seqlen_balanced_partitions, equal_size=True)
    names = [np.random.default_rng([seed, group]).bytes(8).hex() for group in range(GROUPS)]
    keys = [f"{names[row // N]}_{row % N}_0" for row in range(GROUPS * N)]
    own = balanced_order(keys, work.tolist(), [False] * len(keys), ranks=RANKS, rows=ROWS, partition=equal)
    return {"verl": [row for part in equal(work, RANKS) for row in part], "recipe": own}


def measure(rank: int, steps: int, files: str) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "DIST_INIT_METHOD": f"file://{files}/meeting"}
    os.environ |= {"MASTER_ADDR": "unused", "MASTER_PORT": "0"}
    torch.set_num_threads(1)
    config = compose_overrides([*OPTIONS, f"actor_rollout_ref.model.path={files}/model"])
    worker = ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    worker.init_model()
    worker.set_loss_fn(loss_of(config))
    train_batch, rows = worker.actor.train_batch, []
    for step in range(steps + 1):
        data = make_step(step)
        by_cut = list(cuts(data["input_ids"].offsets().diff().tolist(), step).items())
        for cut, order in by_cut[:: 1 if step % 2 else -1]:
            updates = iter(range(1, UPDATES + 1))

            def timed(mini_batch: TensorDict, step: int = step, cut: str = cut, updates: Any = updates) -> Any:
                tokens, began = int(mini_batch["input_ids"].offsets()[-1]), (time.perf_counter(), time.process_time())
                output = train_batch(mini_batch)
                seconds, cpu_s = time.perf_counter() - began[0], time.process_time() - began[1]
                rows.append((step, cut, next(updates), rank, tokens, seconds, cpu_s))
                return output

            worker.actor.train_batch = timed
            own = tu.index_select_tensor_dict(data, order[rank * len(order) // RANKS :][: len(order) // RANKS])
            tu.assign_non_tensor(own, calculate_entropy=False, temperature=1.0, epochs=1, seed=0)
            tu.assign_non_tensor(
                own, global_batch_size=ROWS, mini_batch_size=ROWS, dataloader_kwargs={"shuffle": False}
            )
            worker.update_actor(own)
    columns = ["step", "cut", "update", "rank", "tokens", "seconds", "cpu_s"]
    pd.DataFrame(rows, columns=columns).to_csv(f"{files}/rank_{rank}.csv", index=False)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--output", type=Path, default=Path("outputs", "mini_batches"))
    options = parser.parse_args()
    os.environ.update(cpu_environment(os.environ))  # of the ranks, which take over `sys.path`, too
    sys.path.append(str(PLUGIN_PATH))
    shape = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "head_dim": 32}
    with tempfile.TemporaryDirectory() as files:
        build_tokenizer().save_pretrained(f"{files}/model")
        config = Qwen3Config(vocab_size=VOCABULARY, num_attention_heads=4, num_key_value_heads=2, **shape)
        Qwen3ForCausalLM(config).save_pretrained(f"{files}/model")
        torch.multiprocessing.spawn(measure, args=(options.steps, files), nprocs=RANKS)
        lines = pd.concat(pd.read_csv(file) for file in sorted(Path(files).glob("rank_*.csv")))
    by_rank = lines[lines["step"] > 0].pivot(index=["step", "cut", "update"], columns="rank")  # the first one warms up
    tokens = by_rank["tokens"]
    rows = tokens.add_prefix("tokens_").assign(busiest_over_mean=(tokens.max(axis=1) / tokens.mean(axis=1)).round(4))
    rows = rows.assign(**{name: by_rank[name].max(axis=1).round(4) for name in ("seconds", "cpu_s")})
    options.output.mkdir(parents=True, exist_ok=True)
    rows.reset_index().to_csv(options.output / "runs.csv", index=False)
    print(rows.groupby("cut")[["busiest_over_mean", "seconds", "cpu_s"]].mean().round(3))
    of_steps = rows.groupby(["step", "cut"])[["seconds", "cpu_s"]].sum().unstack("cut")
    for name in ("seconds", "cpu_s"):
        ratios = of_steps[name]["recipe"] / of_steps[name]["verl"]
        print(
            f"{name} of a step's updates, recipe over verl: median {ratios.median():.3f}, {ratios.round(3).to_list()}"
        )
