"""Checkpoints as verl and the recipe leave them, with small files for the large ones."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recipe.async_dapo.record.checkpoint_folder import saving

ANEW_OF_ITS_OWN = r"begin a new run .*, in a trainer\.default_local_dir \(CKPTS_DIR\) of its own \(docs/cluster\.md\)$"
PARTS = ("model.pt", "optim.pt", "extra_state.pt")  # of a model; FSDP's names are longer
FILES = (
    *(f"actor/{part}" for part in PARTS),
    "data.pt",
    "transfer_queue/metadata.json",
    "transfer_queue/controller.pkl",
)


def write_checkpoint(
    root: Path,
    step: int,
    *,
    frames: Iterable[bytes] = (b"a", b"pool"),
    further: Iterable[str] = (),
    files: Iterable[str] = FILES,
    **noted: Any,
) -> Path:
    """
    Args:
        further: files of verl's beside those that every checkpoint has.
        files: these.
        noted: further fields of `Complete`.
    """
    folder = root / f"global_step_{step}"
    with saving(folder, frames, **noted):
        for name in (*files, *further):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("verl's")
        (root / "latest_checkpointed_iteration.txt").write_text(str(step))
    return folder
