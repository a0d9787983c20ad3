"""The way to another number of training GPUs: a checkpoint's weights, written as a model by the page's command."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from recipe.async_dapo.startup.preflight import check_all

from ..support.composed_runs import compose_run, valid_overrides, write_files
from ..support.documents import page
from .test_balance_on_two_ranks import RANKS, joined


def save(rank: int, files: str) -> None:
    own = joined(rank, files)
    weights = own.do("train")
    own.do("save", f"{files}/checkpoint/actor")
    if rank == 0:
        torch.save(weights, f"{files}/weights")
    dist.destroy_process_group()


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:Disabled critic")  # verl announces at every check that GRPO needs none
def test_given_a_checkpoint_of_two_ranks_when_written_as_a_model_then_one_rank_can_begin_with_its_weights(tmp_path):
    write_files(tmp_path)
    torch.multiprocessing.spawn(save, args=(str(tmp_path),), nprocs=RANKS)
    [command] = [block for block in page("docs/cluster.md").code_blocks if "verl.model_merger" in block]
    places = {"python": sys.executable, "CKPT/actor": f"{tmp_path}/checkpoint/actor", "MODEL": f"{tmp_path}/merged"}
    subprocess.run([places.get(word, word) for word in shlex.split(command)], check=True, timeout=300)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").state_dict()
    weights = torch.load(Path(tmp_path, "weights"))
    assert all(torch.equal(merged[name], weight.bfloat16()) for name, weight in weights.items()) and weights
    check_all(compose_run([*valid_overrides(tmp_path), f"actor_rollout_ref.model.path={tmp_path}/merged"]))
