"""Model and data are made once, whole, and the same for the same seed."""

from pathlib import Path

import pytest
import torch

from recipe.async_dapo_lab.quickstart import tiny_model as warm_start_module
from recipe.async_dapo_lab.quickstart.model_and_data import Assets, prepare_assets
from recipe.async_dapo_lab.quickstart.muon import Muon, orthogonal
from recipe.async_dapo_lab.quickstart.task import TaskShape
from recipe.async_dapo_lab.quickstart.tiny_model import build_model, build_tokenizer


@pytest.fixture
def short_warm_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_start_module, "UPDATES", 3)


@pytest.fixture
def assets(tmp_path: Path, short_warm_start: None) -> Assets:
    return prepare_assets(tmp_path, seed=0)


def test_given_prepared_assets_when_asked_again_then_nothing_is_made(assets, monkeypatch):
    monkeypatch.setattr(warm_start_module, "warm_start", None)
    assert prepare_assets(assets.folder.parent, seed=0) == assets


def test_given_another_seed_when_prepared_then_it_gets_its_own_folder(assets):
    assert prepare_assets(assets.folder.parent, seed=1).folder != assets.folder


def test_given_an_interrupted_warm_start_when_prepared_again_then_no_half_made_folder_is_used(
    tmp_path, short_warm_start
):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(warm_start_module, "warm_start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare_assets(tmp_path, seed=0)
    assert list(tmp_path.iterdir()) == []
    assert prepare_assets(tmp_path, seed=0).train_file.exists()


def test_given_the_same_seed_when_started_twice_then_the_weights_are_equal(short_warm_start):
    def weights() -> list[torch.Tensor]:
        tokenizer = build_tokenizer()
        model = build_model(tokenizer, seed=5)
        warm_start_module.warm_start(model, tokenizer, seed=5)
        return list(model.parameters())

    assert all(torch.equal(one, other) for one, other in zip(weights(), weights(), strict=True))


@pytest.mark.nightly
def test_given_a_task_of_middling_tail_when_started_then_the_model_has_learned_what_its_teacher_does():
    """The quick start's own has a lighter one: a model that learns this one learns that."""
    tokenizer = build_tokenizer()
    shape = TaskShape(shortest=6, longest=99, tail_exponent=1.4, carelessness=0.45)
    ratio = warm_start_module.warm_start(build_model(tokenizer, seed=0), tokenizer, seed=0, shape=shape)
    assert 0.95 < ratio < 1.05


def test_given_a_model_that_has_not_learned_its_teachers_ways_then_it_goes_on_with_a_lower_rate(monkeypatch):
    tokenizer, rates = build_tokenizer(), []
    monkeypatch.setattr(warm_start_module, "_imitate", lambda model, batches, rate, pad_id: rates.append(rate) or 1.3)
    assert warm_start_module.warm_start(build_model(tokenizer, seed=0), tokenizer, seed=0) == 1.3
    assert rates == list(warm_start_module.LEARNING_RATES)


@pytest.mark.parametrize("shape", [(3, 8, 5), (3, 5, 8)])
def test_given_matrices_when_made_orthogonal_then_directions_stay_and_singular_values_are_near_one(shape):
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(shape, generator=generator)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    values = left.mT @ orthogonal(matrices) @ right.mT
    between = torch.diagonal(values, dim1=1, dim2=2)
    assert between.min() > 0.6 and between.max() < 1.3
    assert torch.allclose(values, torch.diag_embed(between), atol=1e-4)


def test_given_matrices_of_several_shapes_when_updated_then_each_is_as_it_would_be_alone():
    generator = torch.Generator().manual_seed(0)
    starts = [torch.randn(shape, generator=generator) for shape in ((8, 4), (4, 8), (8, 4))]
    gradients = [[torch.randn(start.shape, generator=generator) for start in starts] for _ in range(3)]

    def updated(indices: list[int]) -> list[torch.Tensor]:
        matrices = [torch.nn.Parameter(starts[index].clone()) for index in indices]
        optimizer = Muon(matrices, lr=0.02)
        for of_update in gradients:
            for index, matrix in zip(indices, matrices, strict=True):
                matrix.grad = of_update[index].clone()
            optimizer.step()
        return matrices

    together = updated([0, 1, 2])
    for index, matrix in enumerate(together):
        assert torch.allclose(matrix, *updated([index]), atol=1e-6)
        assert not torch.equal(matrix, starts[index])


@pytest.mark.parametrize(("shape", "scale"), [((8, 2), 2.0), ((4, 4), 1.0), ((2, 8), 1.0)])
def test_given_a_gradient_when_updated_then_the_matrix_goes_down_it_and_on_by_its_momentum(shape, scale):
    generator = torch.Generator().manual_seed(0)
    start, gradient = (torch.randn(shape, generator=generator) for _ in range(2))
    matrix = torch.nn.Parameter(start.clone())
    optimizer = Muon([matrix], lr=0.02)
    step = 0.02 * scale * orthogonal(gradient[None])[0]
    for steps, seen in ((1, gradient), (2, torch.zeros(shape))):
        matrix.grad = seen.clone()
        optimizer.step()
        assert torch.allclose(matrix, start - steps * step, atol=1e-5)
