"""An update that verl's FSDP worker leaves out."""

from pathlib import Path

import pytest
import torch

from recipe.async_dapo.record import keys
from recipe.async_dapo.training.metrics import update_metrics

from ..support.composed_runs import compose_run, valid_overrides, write_files
from ..support.ranks import nested, run_ranks
from ..support.training_rank import BYPASS, OVERRIDES, Rank, make_batch


def check_left_out(files: Path) -> None:
    rank = Rank(compose_run([*valid_overrides(files), *OVERRIDES, "trainer.n_gpus_per_node=1", *BYPASS]))
    before, data = rank.parameters(), make_batch(seed=1)
    data["old_log_probs"] = data["rollout_log_probs"]
    right = data.clone(recurse=False)
    data["advantages"] = nested([row * float("nan") for row in data["advantages"].unbind()])
    after, metrics = rank.update(data)
    assert update_metrics(metrics) == {keys.SKIPPED_UPDATE: 1.0}
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    after, metrics = rank.update(right)
    assert update_metrics(metrics) == {keys.SKIPPED_UPDATE: 0.0}
    assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.slow
def test_an_update_whose_gradient_is_not_finite_changes_nothing_and_is_counted(tmp_path):
    write_files(tmp_path)
    run_ranks(check_left_out, tmp_path, ranks=1)
