"""One row of `side_by_side` on one GPU: a Qwen3 of 0.6B with random weights, and answers of drawn lengths.

python -m benchmarks.gpu_day.compare "partial" --output outputs/gpu_day/results

B=32, n=8, at most 2,048 tokens an answer; the reward is a hash of the answer, so that nearly every group is valid. The
row is added to `runs.csv`. `--model experts` takes a tiny mixture of experts; `--device cpu` the quick start's model
and sizes, to try the command.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.side_by_side.run import STALENESS, SYSTEMS, TRAINER_PARTS
from benchmarks.support.runs_file import RunsFile
from benchmarks.support.supervised_training import ROOT
from recipe.async_dapo_lab.gpu_check import reward
from recipe.async_dapo_lab.gpu_check.assets import make_model
from recipe.async_dapo_lab.gpu_check.supervised import run_supervised
from recipe.async_dapo_lab.plan.hardware import MODEL_PRESETS
from recipe.async_dapo_lab.quickstart.activation import run_environment
from recipe.async_dapo_lab.quickstart.model_and_data import Assets, prepare_assets, write_rows
from recipe.async_dapo_lab.quickstart.overrides import RunSettings, quoted, run_overrides, verl_overrides
from recipe.async_dapo_lab.quickstart.run_metrics import STEP_S, RunMetrics
from recipe.async_dapo_lab.quickstart.supervision import RayFolder, exit_on_signals
from recipe.async_dapo_lab.quickstart.tiny_model import build_tokenizer

PROMPTS, RESPONSES = 32, 8
PROMPT_TOK, RESPONSE_TOK = 128, 2048
KV_CACHE_BYTES = 20_000_000_000  # of each engine, so that two systems can start up side by side
WITHOUT_VALIDATION = ("trainer.val_before_train=False", "trainer.test_freq=-1")
FIRST_STEPS = 2  # the engine's and the trainer's first calls are slow, and `partial` has no unfinished answers yet


def task_overrides() -> Iterator[str]:
    """Answers of drawn lengths, which no reward function can tell apart."""
    rollout = "actor_rollout_ref.rollout"
    yield f"reward.custom_reward_function.path={quoted(Path(reward.__file__))}"
    yield f"{rollout}.agent.default_agent_loop=drawn_lengths"
    yield f"{rollout}.agent.agent_loop_config_path={quoted(Path(__file__).with_name('agent_loops.yaml'))}"
    yield f"{rollout}.name=vllm"


def gpu_overrides(system: str) -> Iterator[str]:
    """What an 8B model's script sets, for one GPU that trainer and engine share, and without flash attention."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    yield f"data.train_batch_size={PROMPTS}"
    yield f"{actor}.ppo_mini_batch_size={PROMPTS}"
    yield f"{rollout}.n={RESPONSES}"
    yield f"data.max_prompt_length={PROMPT_TOK}"
    yield f"data.max_response_length={RESPONSE_TOK}"
    yield f"{rollout}.max_model_len={PROMPT_TOK + RESPONSE_TOK + 64}"  # and drafts
    yield f"{rollout}.agent.num_workers=4"
    yield "actor_rollout_ref.model.use_remove_padding=True"
    yield "++actor_rollout_ref.model.override_config.attn_implementation=sdpa"
    yield f"{actor}.strategy=fsdp2"
    yield f"{actor}.use_torch_compile=False"
    yield f"{actor}.fsdp_config.use_torch_compile=False"
    yield f"{actor}.use_dynamic_bsz=True"
    # Attention without flash attention computes all pairs of a micro-batch's tokens: a small one costs less.
    yield f"{actor}.ppo_max_token_len_per_gpu={2 * (PROMPT_TOK + RESPONSE_TOK)}"
    yield f"{actor}.optim.lr=1e-6"
    yield f"{rollout}.log_prob_use_dynamic_bsz=True"
    yield f"{rollout}.log_prob_max_token_len_per_gpu={2 * (PROMPT_TOK + RESPONSE_TOK)}"
    yield f"{rollout}.tensor_model_parallel_size=1"
    yield f"{rollout}.gpu_memory_utilization=0.3"
    yield f"++{rollout}.engine_kwargs.vllm.kv_cache_memory_bytes={KV_CACHE_BYTES}"
    yield f"++{rollout}.engine_kwargs.vllm.distributed_executor_backend=uni"  # one process less to start
    yield f"{rollout}.free_cache_engine={system != 'partial_stale_kv'}"
    yield f"{rollout}.max_num_seqs=384"
    # Graphs without torch.compile, which alone would take a minute of a run.
    yield f"++{rollout}.engine_kwargs.vllm.compilation_config={{mode:0,cudagraph_mode:FULL_DECODE_ONLY}}"


def make_dense(folder: Path) -> None:
    make_model(folder, seed=0, shape=MODEL_PRESETS["qwen3-0.6b"])


def make_experts(folder: Path) -> None:
    """Four layers of eight experts, two of them for each token."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id")}
    shape = json.loads(Path(__file__).with_name("experts.json").read_text("utf-8"))
    config = Qwen3MoeConfig(**shape, **ids, vocab_size=len(tokenizer))
    Qwen3MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


MODELS = {"0.6b": make_dense, "experts": make_experts}


def prepare(folder: Path, *, device: str, model: str) -> Assets:
    """Model and data, made once."""
    if device == "cpu":
        return prepare_assets(folder, seed=0)
    assets = Assets(folder=folder / model)
    if not assets.validation_file.exists():
        MODELS[model](assets.model)
        write_rows(assets, seed=0, train=4096, validation=64)
    return assets


def figures(steps: list[dict[str, float]]) -> dict[str, float | str]:
    """Over the steps after the first ones."""
    warm = steps[FIRST_STEPS:]
    means = {
        "step_s": STEP_S,
        "rollout_s": "timing_s/gen",
        **{f"{part}_s": f"timing_s/{part}" for part in TRAINER_PARTS},
        "response_tok": "response_length/mean",
        "staleness": STALENESS,
    }
    return {
        "steps": len(steps),
        "every_step_s": " ".join(f"{step[STEP_S]:.2f}" for step in steps),
        **{name: round(statistics.mean(step.get(key, 0.0) for step in warm), 3) for name, key in means.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--model", choices=MODELS, default="0.6b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--output", type=Path, default=Path("outputs", "gpu_day", "results"))
    parser.add_argument("--work", type=Path, help="folder of the run's log; by default one beside the results")
    parser.add_argument("--timeout-s", type=float, default=600.0)
    options = parser.parse_args()
    exit_on_signals()
    model = options.model if options.device == "cuda" else "quick start"
    cell = {"system": options.system, "model": model, "device": options.device}
    work = options.output.absolute().with_name("work")
    assets = prepare(work, device=options.device, model=options.model)
    folder = (options.work or work / RunsFile.folder_name(cell)).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    metrics = RunMetrics(file=folder / "metrics.jsonl")
    metrics.file.unlink(missing_ok=True)
    with RayFolder() as ray:
        settings = RunSettings(assets=assets, output=folder, ray_folder=ray.path, steps=options.steps, seed=0)
        module, *own = SYSTEMS[options.system].entry(1)
        is_cpu = options.device == "cpu"
        machine = verl_overrides(settings) if is_cpu else (*run_overrides(settings), *gpu_overrides(options.system))
        environment = run_environment(os.environ, code_path=ROOT, output=folder, ray_folder=ray.path)
        if not is_cpu:
            del environment["VERL_PLATFORM"]
        ended = run_supervised(
            [sys.executable, "-m", module, *machine, *task_overrides(), *own, *WITHOUT_VALIDATION],
            environment=environment,
            log=folder / "train.log",
            timeout_s=options.timeout_s,
        )
    metrics.read_new()
    if len(metrics.steps) <= FIRST_STEPS:
        sys.exit(f"{len(metrics.steps)} of {options.steps} steps: {ended}")
    RunsFile(options.output / "runs.csv").add({**cell, **figures(metrics.steps), "ended": ended or "well"})
    print(f"{options.system}: {figures(metrics.steps)}")


if __name__ == "__main__":
    main()
