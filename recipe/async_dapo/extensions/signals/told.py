"""Ctrl-C and SIGTERM: the driver's last lines say where the run was, what is saved, and what goes on from there."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from omegaconf import DictConfig

from ...record.checkpoint_folder import DamagedCheckpoint, absent_parts, checkpoint_folders, read_complete, run_of
from ...runtime.interruption import interruptible
from ...runtime.launch import without_secrets
from ...runtime.node_start import end_ray
from .noted_step import noted_step


@contextmanager
def told_how_to_go_on(config: DictConfig) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the process with lines that say where the run was, what is saved, and what goes on."""
    with interruptible(signal.SIGINT, signal.SIGTERM) as stop:
        try:
            yield
        except BaseException as error:  # whatever verl or Ray have made of the interruption
            number = stop.number or _number_of(error)
            if number is None:
                raise
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one changes nothing
            step = noted_step()
            with suppress(KeyboardInterrupt):  # a second Ctrl-C does not wait for Ray's end
                end_ray()
            place = "before the first step" if step is None else f"in step {step}"
            sys.stderr.write(f"\nasync_dapo: interrupted {place}; {how_to_go_on(config)}\n")
            sys.exit(128 + number)


def _number_of(error: BaseException) -> int | None:
    """The signal that it stands for: Ray has a handler of its own while it starts."""
    if isinstance(error, SystemExit) and error.code == signal.SIGTERM:
        return signal.SIGTERM
    return signal.SIGINT if isinstance(error, KeyboardInterrupt) else None


def how_to_go_on(config: DictConfig) -> str:
    """What is saved, and the command that goes on from there."""
    trainer, command = config.trainer, shlex.join(without_secrets(sys.orig_argv))
    if "-P" in sys.orig_argv and (found_in := os.environ.get("PYTHONPATH")):  # as the reference scripts start it
        command = f"PYTHONPATH={shlex.quote(found_in)} {command}"
    root = Path(trainer.default_local_dir).expanduser()
    saved = next((folder for folder in checkpoint_folders(root) if run_of(folder) is not None), None)
    if saved is None:
        return f"no checkpoint is saved (trainer.save_freq={trainer.save_freq})\nTo begin anew: {command}"
    with suppress(DamagedCheckpoint):  # then the older one is found at the start
        if absent := absent_parts(read_complete(saved), "actor"):
            return f"{saved} is saved, without {' and '.join(absent)}: no run goes on from it\nTo begin anew: {command}"
    if trainer.resume_mode != "auto":
        command += " trainer.resume_mode=auto trainer.resume_from_path=null"
    return f"{saved} is saved\nTo go on from there: {command}"
