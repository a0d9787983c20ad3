"""What is evaluated, and the options of the run that it is evaluated with: those of the training, but for a few."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...async_dapo.config.values import ConfigError
from ..quickstart.overrides import quoted
from ..saved_run import SavedRun

_RECORDER = f"{__package__}.recorder.EvaluationRecorder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """
    Attributes:
        name: for people.
        overrides: of the run that trained it, then the user's.
        checkpoint: whose weights are taken; None: those of `model`.
        model: folder, or name on the hub.
    """

    name: str
    overrides: Sequence[str]
    saved: SavedRun
    checkpoint: Path | None = None
    model: str | None = None

    @classmethod
    def named(cls, name: str, *, step: int | None, overrides: Sequence[str]) -> "Subject":
        """
        Args:
            name: a folder of a run or of a model, or a model's name on the hub.

        Raises:
            ConfigError: where it is neither, or says too little of how it is sampled and scored.
        """
        folder = Path(name).absolute()
        saved = SavedRun.at(folder)
        subject = cls(name=name, saved=saved, overrides=[*saved.overrides, *overrides])
        if (folder / "adapter_config.json").exists():
            remedy = "is an adapter alone; evaluate its run, or export it with --lora merged"
            raise ConfigError("RUN_DIR|MODEL", folder, remedy)
        if not folder.exists() and (name.count("/") != 1 or name.startswith((".", "/", "~"))):
            raise ConfigError("RUN_DIR|MODEL", name, "no such folder, and no name on the hub, which is OWNER/MODEL")
        if (folder / "config.json").exists() or not folder.exists():
            if step is not None:
                raise ConfigError("--step", step, f"{name} is a model, which has no steps; leave it out")
            subject = replace(subject, model=str(folder) if folder.exists() else name)
        else:
            subject = replace(subject, checkpoint=saved.checkpoint(step))
        if not subject.overrides:
            remedy = (
                "no run.json in it names the options of its training; give those of data, reward and engine after --, "
                "as of recipe.async_dapo_lab.train"
            )
            raise ConfigError("RUN_DIR|MODEL", name, remedy)
        return subject

    @property
    def weights(self) -> Iterator[str]:
        if self.checkpoint is not None:
            yield "trainer.resume_mode=resume_path"
            yield f"trainer.resume_from_path={quoted(self.checkpoint)}"
            return
        yield "trainer.resume_mode=disable"
        yield f"actor_rollout_ref.model.path={quoted(Path(self.model or ''))}"
        yield "actor_rollout_ref.model.lora_rank=0"  # an exported adapter is merged
        yield "actor_rollout_ref.model.lora_adapter_path=null"

    def evaluation(self, folder: Path, *, data: Sequence[Path], samples: int | None) -> list[str]:
        """Overrides of the run that validates once, and writes into a folder of its own."""
        return [*self.overrides, *self.weights, *_validating(folder, data, samples)]


def _validating(folder: Path, data: Sequence[Path], samples: int | None) -> Iterator[str]:
    yield "trainer.val_only=True"
    yield "trainer.val_before_train=True"
    if data:
        yield f"data.val_files=[{','.join(quoted(file.absolute()) for file in data)}]"
        yield "data.val_max_samples=-1"
    if samples is not None:
        yield f"actor_rollout_ref.rollout.val_kwargs.n={samples}"
    yield f"trainer.default_local_dir={quoted(folder / 'checkpoints')}"
    yield f"trainer.validation_data_dir={quoted(folder / 'answers')}"
    yield "trainer.rollout_data_dir=null"
    yield "trainer.logger=[console]"
    yield f"async_dapo.report_dir={quoted(folder)}"
    yield f"async_dapo.recorder={_RECORDER}"
    yield f"hydra.run.dir={quoted(folder / 'hydra')}"
