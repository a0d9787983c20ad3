"""A run that has been trained, found again: its record, its options, and the checkpoints that it has left."""

from dataclasses import dataclass
from pathlib import Path

from ..async_dapo.config.values import ConfigError
from ..async_dapo.record.checkpoint_folder import (
    STEP_FOLDER,
    DamagedCheckpoint,
    checkpoint_folders,
    read_complete,
    step_of,
)
from .run_record import RunDescription, read_description

_OWN = ("async_dapo.recorder", "hydra.", "hydra/")  # these overrides say what a run writes, not what it is


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """
    Attributes:
        folder: that was named: of the record, of the checkpoints, of one of them, or of an exported model.
        record: folder of the record, which may lie above a checkpoint.
        description: None where no `run.json` is found.
    """

    folder: Path
    record: Path
    description: RunDescription | None

    @classmethod
    def at(cls, folder: Path) -> "SavedRun":
        """
        Raises:
            ConfigError: for a run.json that no run has written.
        """
        places = [folder, *folder.parents[:2]] if folder.name.startswith(STEP_FOLDER) else [folder]
        try:
            for place in places:
                if (found := read_description(place)) is not None:
                    return cls(folder=folder, record=place, description=found)
        except ValueError as error:
            raise ConfigError("RUN_DIR", folder, str(error)) from error
        return cls(folder=folder, record=places[:2][-1], description=None)

    @property
    def overrides(self) -> list[str]:
        """Those that say what the run is."""
        given = self.description.launch.get("overrides", ()) if self.description is not None else ()
        return [override for override in given if not override.lstrip("+~").startswith(_OWN)]

    @property
    def started_in(self) -> Path | None:
        """Where relative paths among the overrides begin; None: not known, or gone."""
        folder = self.description.launch.get("folder") if self.description is not None else None
        return Path(folder) if folder is not None and Path(folder).is_dir() else None

    @property
    def runs_on_cpu(self) -> bool:
        return "trainer.device=cpu" in self.overrides

    def checkpoint(self, step: int | None = None) -> Path:
        """The newest complete checkpoint, or that of a step.

        Raises:
            ConfigError: if there is none; it says which there are.
        """
        if not self.folder.is_dir():
            raise ConfigError("RUN_DIR", self.folder, "no such folder")
        found = [folder for root in self._roots() for folder in checkpoint_folders(root)]
        if self.folder.name.startswith(STEP_FOLDER):
            found = [self.folder]
        try:
            steps = {folder: step_of(folder) for folder in found}
        except DamagedCheckpoint as error:  # of the folder that was named
            raise ConfigError("RUN_DIR", self.folder, str(error)) from error
        wanted = [folder for folder in found if step in (None, steps[folder])]
        damages = []
        for folder in wanted:
            try:
                read_complete(folder)
            except DamagedCheckpoint as error:
                damages.append(str(error))
            else:
                return folder
        there = ", ".join(map(str, steps.values())) or "none"
        what = "no complete checkpoint" if step is None else f"no complete checkpoint of step {step}"
        remedy = "set trainer.save_freq for the next run" if not found else "name one that is complete"
        raise ConfigError("RUN_DIR", self.folder, "; ".join([f"{what} (steps found: {there})", *damages, remedy]))

    def _roots(self) -> list[Path]:
        """Folders of checkpoints: beside the record, where the run wrote them, and where a run that was moved as a
        whole has them."""
        roots = [self.folder, self.folder / "checkpoints"]
        if self.description is not None and self.description.checkpoints:
            roots.append(Path(self.description.checkpoints))
        return list(dict.fromkeys(root.resolve() for root in roots))
