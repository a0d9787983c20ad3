"""A prompt has one name over all its visits: what verl's data set and data loader hand out is the same every time."""

import pickle
import uuid
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from torch.utils.data import DataLoader
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

from recipe.async_dapo.rollout.manager import make_group, prompt_rows
from recipe.async_dapo_lab.quickstart.tiny_model import build_tokenizer

from ..support.composed_runs import rows, write_parquet

PROMPTS = 4


def keys_of_a_visit(dataset: RLHFDataset) -> list[str]:
    """As `_fetch_one_gen_batch` of verl's trainer makes rows."""
    keys = []
    for batch in DataLoader(dataset, batch_size=1, collate_fn=collate_fn):
        batch["uid"] = np.array([str(uuid.uuid4())], dtype=object)
        [row] = prompt_rows(tu.get_tensordict(batch))
        keys.append(make_group(row, n=2, step=1).key)
    return keys


def test_given_a_batch_of_many_prompts_then_a_row_weighs_what_it_holds() -> None:
    """Also where it is pickled: a view would take the whole batch along."""
    batch = {"ids": torch.zeros(1000, 100), "uid": np.array(["one"] * 1000, dtype=object)}
    for row in prompt_rows(tu.get_tensordict(batch))[:2]:
        assert len(pickle.dumps(row)) < 2000


def test_given_a_data_set_visited_twice_then_each_prompt_keeps_its_key_and_no_two_share_one(tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    write_parquet(file, rows(PROMPTS))
    config = OmegaConf.create({"cache_dir": str(tmp_path), "max_prompt_length": 64, "filter_overlong_prompts": False})
    dataset = RLHFDataset(data_files=str(file), tokenizer=build_tokenizer(), config=config)
    first, second = keys_of_a_visit(dataset), keys_of_a_visit(dataset)
    assert first == second
    assert len(set(first)) == PROMPTS
