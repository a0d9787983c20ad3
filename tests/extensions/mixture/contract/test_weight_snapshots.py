"""Snapshots of FSDP2's weights, on 2 ranks: what a forward pass computes with them, and what comes back."""

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from recipe.async_dapo.extensions.mixture import snapshots as snapshots_module
from recipe.async_dapo.extensions.mixture.correction import NAME
from recipe.async_dapo.extensions.mixture.snapshots import WeightSnapshots
from recipe.async_dapo.weights.sender import AsyncDAPOActorRolloutRefWorker

from ....support.ranks import run_ranks

RANKS = 2
VERSIONS = 3


def sharded_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].bias.requires_grad_(False)
    mesh = init_device_mesh("cpu", (RANKS,))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)  # its own group stays gathered after a forward pass


@torch.no_grad()
def output(model: nn.Module) -> Tensor:
    return model(torch.linspace(-1, 1, 12).view(2, 6)).clone()


def train_a_step(model: nn.Module) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.3)
    model(torch.ones(2, 6)).square().sum().backward()
    optimizer.step()


def shards(model: nn.Module) -> list[Tensor]:
    for module in (model[0], model):
        module.reshard()
    return [p.to_local().clone() for p in model.parameters() if isinstance(p, DTensor)]


def check_rank(folder: Path) -> None:
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=int(os.environ["RANK"]), world_size=RANKS)
    for dtype in (torch.float32, torch.bfloat16):
        check_snapshots(dtype)


def check_snapshots(dtype: torch.dtype) -> None:
    model = sharded_model()
    snapshots = WeightSnapshots(model, dtype)
    outputs = []
    for version in range(VERSIONS):
        outputs.append(output(model))
        snapshots.keep(version, oldest=version - 1)
        train_a_step(model)
    newest, exact = output(model), shards(model)
    for version in (VERSIONS - 1, VERSIONS - 2):  # the one before them was forgotten
        snapshots.load(version)
        tolerance = 0.0 if dtype is torch.float32 else 0.02
        torch.testing.assert_close(output(model), outputs[version], rtol=0, atol=tolerance)
        assert not torch.equal(output(model), newest)
    with pytest.raises(KeyError):
        snapshots.load(0)
    snapshots.load_newest()
    assert torch.equal(output(model), newest)
    assert all(torch.equal(own, before) for own, before in zip(shards(model), exact, strict=True))
    trained = sum(p.to_local().numel() for p in model.parameters() if p.requires_grad)
    assert snapshots.kept_bytes == 2 * trained * dtype.itemsize


@pytest.mark.slow
def test_a_version_computes_what_it_did_and_the_newest_comes_back_bit_by_bit(tmp_path: Path) -> None:
    run_ranks(check_rank, tmp_path, ranks=RANKS)


class LateHost:
    """A device whose copies to the host are there when it has been synchronized, and not before."""

    def __init__(self, parameter: Tensor) -> None:
        self._parameter = parameter
        self._arriving: Tensor | None = None

    @torch.no_grad()
    def offload(self, value: float) -> None:
        self._arriving = torch.full_like(self._parameter, value)
        self._parameter.fill_(torch.nan)

    @torch.no_grad()
    def synchronize(self) -> None:
        if self._arriving is not None:
            self._parameter.copy_(self._arriving)
            self._arriving = None


def test_given_weights_that_are_on_their_way_to_the_host_then_they_are_waited_for(monkeypatch):
    model = nn.Linear(2, 1, bias=False)
    device = LateHost(model.weight)
    monkeypatch.setattr(snapshots_module, "get_torch_device", lambda: device)
    engine = SimpleNamespace(module=model, _autocast_dtype=torch.float32)
    worker = SimpleNamespace(actor=SimpleNamespace(engine=engine))
    call = partial(AsyncDAPOActorRolloutRefWorker.call_extension, worker, NAME)
    call("snapshots.begin")
    device.offload(1.0)
    assert call("snapshots.keep", 1, 1) == 2 * 4
    device.offload(2.0)
    call("snapshots.load", 1)
    assert model.weight.tolist() == [[1.0, 1.0]]
    device.offload(1.0)
    call("snapshots.load_newest")
    device.synchronize()
    assert model.weight.tolist() == [[2.0, 2.0]]
