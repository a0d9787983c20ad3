"""One row of `side_by_side` on one GPU: a Qwen3 of 0.6B with random weights, and answers of drawn lengths.

python -m benchmarks.gpu_day.compare "partial" --output outputs/gpu_day/results

B=32, n=8, at most 2,048 tokens an answer; the reward is a hash of the answer, so that nearly every group is valid. The
row is added to `runs.csv`. `--device cpu` takes the quick start's model and sizes, to try the command.
"""

import argparse
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.side_by_side.run import STALENESS, SYSTEMS, TRAINER_PARTS
from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo_lab.command_line import path
from recipe.async_dapo_lab.gpu_check import reward
from recipe.async_dapo_lab.gpu_check.assets import prepare
from recipe.async_dapo_lab.gpu_check.training import gpu_overrides, run_entry
from recipe.async_dapo_lab.plan.hardware import MODEL_PRESETS
from recipe.async_dapo_lab.quickstart.overrides import RunSettings, quoted, run_overrides, verl_overrides
from recipe.async_dapo_lab.quickstart.run_metrics import STEP_S
from recipe.async_dapo_lab.quickstart.supervision import exit_on_signals

PROMPTS, RESPONSES = 32, 8
PROMPT_TOK, RESPONSE_TOK = 128, 2048
STEPS = 6
HOST_KV = "async_dapo.host_kv_gib"
HOST_KV_GIB = 32  # 300,000 tokens of this model; `side_by_side` says what is enough for a tiny one
FIRST_STEPS = 2  # the engine's and the trainer's first calls are slow, and `partial` has no unfinished answers yet


def task_overrides() -> Iterator[str]:
    """Answers of drawn lengths, which no reward function can tell apart."""
    rollout = "actor_rollout_ref.rollout"
    yield f"reward.custom_reward_function.path={quoted(Path(reward.__file__))}"
    yield f"{rollout}.agent.default_agent_loop=drawn_lengths"
    yield f"{rollout}.agent.agent_loop_config_path={quoted(Path(__file__).with_name('agent_loops.yaml'))}"
    yield "trainer.val_before_train=False"
    yield "trainer.test_freq=-1"


def machine_overrides() -> Iterator[str]:
    """Of one GPU that trainer and engine share."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    # Attention without flash attention computes all pairs of a micro-batch's tokens: a small one costs less.
    yield from gpu_overrides(
        prompt_tok=PROMPT_TOK, response_tok=RESPONSE_TOK, trained_at_once_tok=2 * (PROMPT_TOK + RESPONSE_TOK)
    )
    yield f"data.train_batch_size={PROMPTS}"
    yield f"{actor}.ppo_mini_batch_size={PROMPTS}"
    yield f"{rollout}.n={RESPONSES}"
    yield f"{rollout}.agent.num_workers=4"
    yield f"{rollout}.max_num_seqs=384"
    yield f"{rollout}.gpu_memory_utilization=0.4"
    yield f"{rollout}.free_cache_engine=True"


def options(system: str, device: str, **places: Any) -> Iterable[str]:
    """Hydra overrides of a row."""
    settings = RunSettings(steps=STEPS, seed=0, **places)
    _, *own = SYSTEMS[system].entry(1)
    if device == "cpu":
        return *verl_overrides(settings), *task_overrides(), *own
    own = [f"{HOST_KV}={HOST_KV_GIB}" if one.startswith(f"{HOST_KV}=") else one for one in own]
    return *run_overrides(settings), *machine_overrides(), *task_overrides(), *own


def figures(steps: Sequence[Mapping[str, float]]) -> dict[str, float | str]:
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
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=path, default=Path("outputs", "gpu_day", "results"))
    parser.add_argument("--timeout-s", type=float, default=600.0)
    asked = parser.parse_args()
    exit_on_signals()
    system, device = asked.system, asked.device
    folder = asked.output.absolute().with_name("work") / RunsFile.folder_name({"system": system})
    assets = prepare(folder.with_name("model"), device=device, shape=MODEL_PRESETS["qwen3-0.6b"])
    steps, ended = run_entry(
        SYSTEMS[system].entry(1)[0],
        lambda ray: options(system, device, assets=assets, output=folder, ray_folder=ray),
        device=device,
        folder=folder,
        timeout_s=asked.timeout_s,
    )
    if len(steps) <= FIRST_STEPS:
        sys.exit(f"{len(steps)} of {STEPS} steps: {ended}")
    row = {"system": system, "device": device, **figures(steps), "ended": ended or "well"}
    RunsFile(asked.output / "runs.csv").add(row)
    print(row)


if __name__ == "__main__":
    main()
