"""What ends a run: its steps, with verl's last checkpoint and validation; never its epochs before that."""

import logging
from inspect import getattr_static
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torchdata.stateful_dataloader.stateful import Stateful
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.training.run import why_ended
from recipe.async_dapo.training.source import Source
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

from ..support.composed_runs import compose_run, rows, valid_overrides, write_files, write_parquet


class Loop(AsyncDAPOTrainer):
    """verl's data loaders and its loop over the steps, of which each does nothing."""

    logger = SimpleNamespace(log=lambda **_: None)

    def __init__(self, *overrides: str) -> None:
        self.config = compose_run(list(overrides))
        self.replay_buffer = SimpleNamespace(source=Source())  # type: ignore[assignment]
        self.trainer_mode, self.parameter_sync_step, self.global_steps = "async_dapo", 1, 0
        self.steps: list[int] = []
        self.saved: list[int] = []
        self.validated: list[int] = []
        self._init_tokenizer()
        self._init_dataloader()

    def step(self, *_: Any) -> KVBatchMeta:
        self.steps.append(self.global_steps)
        return KVBatchMeta(partition_id="train", keys=[], tags=[])

    def _save_checkpoint(self) -> None:
        self.saved.append(self.global_steps)

    def _validate(self) -> dict[str, float]:
        self.validated.append(self.global_steps)
        return {"acc": 1.0}

    def _nothing(self, *_: Any, **__: Any) -> None: ...

    on_step_end = on_validate_begin = on_validate_end = _compute_metrics = _shutdown_dump_executor = _nothing
    _start_profiling = _stop_profiling = _nothing


def _fitted(monkeypatch: pytest.MonkeyPatch, *overrides: str, resumed: int) -> Loop:
    """After verl's `fit`, from the checkpoint of a step on."""
    for name in ("Tracking", "ValidationGenerationsLogger", "DapoFilteredRewardTableLogger"):
        monkeypatch.setattr(trainer_base, name, lambda **_: Loop.logger)
    monkeypatch.setattr(trainer_base.tq, "kv_clear", lambda **_: None)
    trainer = Loop(*overrides)
    trainer.global_steps = resumed
    PPOTrainer.fit(trainer, None)
    return trainer


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """24 prompts, 8 a step."""
    files = write_files(tmp_path_factory.mktemp("run"))
    write_parquet(Path(files, "train.parquet"), rows(24))
    trainer = ("save_freq=4", "test_freq=5", "val_before_train=False")
    return [*valid_overrides(files), *(f"trainer.{option}" for option in trainer)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of verl's data set
def test_given_validation_in_parts_when_loaded_then_all_prompts_are_one_batch_and_a_line_says_so(
    valid, monkeypatch, caplog
):
    """Of a part whose every trajectory failed nothing could be told."""
    caplog.set_level(logging.INFO, "recipe.async_dapo")
    monkeypatch.setattr(logging.getLogger("recipe.async_dapo"), "propagate", True)  # whatever ran before
    assert len(Loop(*valid, "data.val_batch_size=3").val_dataloader) == 1
    assert "data.val_batch_size=3 is ignored" in caplog.text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_given_fewer_prompts_than_a_batch_when_loaded_then_the_run_ends_with_their_number(valid):
    """A class of the user's may make any number of them."""
    with pytest.raises(ConfigError, match=r"^data.train_batch_size=25: there are 24 prompts to train on, fewer than"):
        Loop(*valid, "data.train_batch_size=25")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("epochs", "steps", "resumed", "trained", "saved", "validated", "why"),
    [
        (1, 6, 0, 6, [4, 6], [5, 6], "step 6 of trainer.total_training_steps=6 is trained"),
        (10, 6, 0, 6, [4, 6], [5, 6], "step 6 of trainer.total_training_steps=6 is trained"),
        (2, "null", 0, 6, [4, 6], [5, 6], "step 6 of trainer.total_epochs=2 is trained"),
        (1, 6, 4, 2, [6], [5, 6], "step 6 of trainer.total_training_steps=6 is trained"),
        (
            1,
            6,
            8,
            0,
            [],
            [],
            "trainer.total_training_steps=6 ends at step 6, and step 8 is trained; raise it to go on",
        ),
    ],
)
def test_a_run_ends_by_its_steps_with_a_checkpoint_and_a_validation_and_says_why(
    valid, monkeypatch, epochs, steps, resumed, trained, saved, validated, why
):
    limits = (f"trainer.total_epochs={epochs}", f"trainer.total_training_steps={steps}")
    trainer = _fitted(monkeypatch, *valid, *limits, resumed=resumed)
    assert len(trainer.steps) == trained
    assert (trainer.saved, trainer.validated, why_ended(trainer)) == (saved, validated, why)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("resumed", [0, 4])
def test_a_run_that_only_validates_does_so_once_trains_and_saves_nothing_and_says_so(valid, monkeypatch, resumed):
    trainer = _fitted(monkeypatch, *valid, "trainer.val_only=True", "trainer.val_before_train=True", resumed=resumed)
    assert (trainer.steps, trainer.saved, trainer.validated) == ([], [], [resumed])
    assert why_ended(trainer) == "trainer.val_only=True: the run validates, and trains nothing"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of verl's data set
def test_given_a_resume_with_fewer_prompts_than_were_drawn_when_one_is_asked_for_then_the_data_is_named(valid) -> None:
    """verl's loader would raise StopIteration, and again when it is started anew."""
    before, resumed = Loop(*valid), Loop(*valid, "data.train_max_samples=8")
    before._draw(12)
    resumed.train_dataloader.load_state_dict(before.train_dataloader.state_dict())
    with pytest.raises(ConfigError, match=r"^data.train_files=.*: 8 prompts are fewer than .* resume with its data"):
        resumed._draw(1)


STOPPING = """
from verl.utils.dataset.rl_dataset import RLHFDataset

class Stopping(RLHFDataset):
    def __getitem__(self, row):
        return super().__getitem__(row) if row < 2 else next(iter(()))
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("processes", [0, 1])
def test_given_a_data_set_that_raises_stop_iteration_then_its_data_have_not_ended(valid, tmp_path, processes):
    """verl's trainer would begin another pass at row 2, and validate on two rows."""
    Path(tmp_path, "own.py").write_text(STOPPING)
    own = (f"data.custom_cls.path={tmp_path}/own.py", "data.custom_cls.name=Stopping", "data.shuffle=False")
    trainer = Loop(*valid, *own, "data.validation_shuffle=False", f"data.dataloader_num_workers={processes}")
    assert len(trainer._draw(2)) == 2
    with pytest.raises(RuntimeError, match=r"the data set has raised StopIteration\(\) when row 2 was read"):
        trainer._draw(1)
    with pytest.raises(RuntimeError, match=r"the data set has raised StopIteration\(\) when row \d+ was read"):
        next(iter(trainer.val_dataloader))


def test_given_a_data_set_with_a_state_then_the_loaders_of_each_python_find_it_and_one_without_has_none() -> None:
    """Python 3.11 asks the object whether it has a state, 3.12 its class."""

    class WithState(list[int]):
        def state_dict(self) -> dict[str, Any]:
            return {"rows": list(self)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self[:] = state["rows"]

    trainer = object.__new__(AsyncDAPOTrainer)
    with pytest.raises(AttributeError, match="train_dataset of AsyncDAPOTrainer is not loaded yet"):
        len(trainer.train_dataset)
    trainer.train_dataset, trainer.val_dataset = WithState([1, 2]), [1]
    for name, found in ("train_dataset", True), ("val_dataset", False):
        data = getattr(trainer, name)
        in_class = [getattr_static(data, method, None) is not None for method in ("state_dict", "load_state_dict")]
        assert isinstance(data, Stateful) is found and in_class == [found, found]
    trainer.train_dataset.load_state_dict({"rows": [3]})
    assert (trainer.train_dataset.state_dict(), trainer.train_dataset[0]) == ({"rows": [3]}, 3)
