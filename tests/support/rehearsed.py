"""Rehearsals of a small job, as a user starts them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = (
    "rehearsal.stand_in=True",
    "rehearsal.speedup=25",
    "rehearsal.steps=3",
    "rehearsal.warmup=1",
    "rehearsal.length_median_tok=1000",
    "trainer.device=cuda",
    "trainer.nnodes=1",
    "trainer.n_gpus_per_node=8",
    "data.train_batch_size=8",
    "data.max_prompt_length=256",
    "data.max_response_length=4096",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "async_dapo.importance_sampling=mixture",
    "async_dapo.max_tokens_per_round=2048",  # so that trajectories are interrupted, however fast the machine is
    "trainer.val_before_train=False",
    "trainer.test_freq=-1",
    "trainer.save_freq=3",
)


def command_of(folder: Path, *overrides: str) -> list[str]:
    return [sys.executable, "-m", "recipe.async_dapo_lab.rehearse", *OPTIONS, *overrides, f"rehearsal.output={folder}"]


def rehearse(folder: Path, *overrides: str) -> Path:
    command = command_of(folder, *overrides)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2400)
    assert done.returncode == 0, done.stdout[-4000:]
    assert done.stdout.startswith("Emulated engines do not feel") and "Bound:" in done.stdout
    assert "This takes about " in done.stdout.partition("Bound:")[0]
    return folder
