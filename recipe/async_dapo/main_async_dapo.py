"""Entry point: `python -m recipe.async_dapo.main_async_dapo <hydra overrides>`."""

import os
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from .config.options import CONFIG_FOLDER, CONFIG_NAME
from .config.values import ConfigError
from .record.checkpoint_folder import DamagedCheckpoint, absent_parts, checkpoint_folders, read_complete, run_of
from .runtime.garbage import collect_cycles_rarely
from .runtime.interruption import interruptible, noted_step
from .runtime.launch import note_launch, without_secrets
from .runtime.logs import last_line, log_phase, note_start, show_logs
from .runtime.verl_version import check_versions
from .startup.overrides import CommandLine, explained_overrides, show_usage
from .startup.preflight import check_all

MODULE = f"{__package__}.main_async_dapo"


def main(module: str = MODULE) -> None:
    """Check everything that can be checked, then train with verl on Ray."""
    show_usage(sys.argv[1:], module=module, about="Trains.")
    collect_cycles_rarely()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # it raises what it would print
    with explained():
        check_versions()  # before Hydra reads verl's own configuration
        with explained_overrides(sys.argv[1:]):
            _run()


@hydra.main(config_path=str(CONFIG_FOLDER), config_name=CONFIG_NAME, version_base=None)
def _run(config: DictConfig) -> None:
    show_logs()
    note_start()
    note_launch([*CommandLine.of(sys.argv[1:]).yaml_flags, *HydraConfig.get().overrides.task])
    with explained(), told_how_to_go_on(config):
        check_all(config)
        log_phase("all checks have passed; starting Ray")
        from .runtime.node_start import run_on_ray
        from .training.task_runner import AsyncDAPOTaskRunnerActor

        run_on_ray(config, AsyncDAPOTaskRunnerActor)


@contextmanager
def explained() -> Iterator[None]:
    """A bad option ends the process with one message, not with a traceback of Hydra or Ray. What goes wrong later is
    told with its traceback first, and in one line last, after everything that Ray still has to say."""
    try:
        yield
    except Exception as error:  # whatever ended the run
        is_bad_option = isinstance(error, ConfigError)
        if not is_bad_option:
            traceback.print_exc()
        end_ray()
        bare = getattr(error, "cause", error)  # one that was raised in an actor comes with that actor's traceback
        sys.exit(f"\nasync_dapo: {bare if is_bad_option else last_line(type(bare).__name__, str(bare))}")


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


def end_ray() -> None:
    """Its processes end, and with them their output."""
    if (ray := sys.modules.get("ray")) is not None:
        ray.shutdown()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
