"""Entry point: `python -m recipe.async_dapo.main_async_dapo <hydra overrides>`."""

import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from .config.options import CONFIG_FOLDER, CONFIG_NAME
from .config.values import ConfigError
from .runtime.garbage import collect_cycles_rarely
from .runtime.launch import note_launch
from .runtime.logs import GO_ON, last_line, log_phase, note_start, show_logs
from .runtime.verl_version import check_versions
from .startup.overrides import show_usage
from .startup.preflight import check_all

MODULE = f"{__package__}.main_async_dapo"


def main(module: str = MODULE) -> None:
    """Check everything that can be checked, then train with verl on Ray."""
    show_usage(sys.argv[1:], module=module, about="Trains.")
    collect_cycles_rarely()
    with explained():
        check_versions()  # before Hydra reads verl's own configuration
    _run()


@hydra.main(config_path=str(CONFIG_FOLDER), config_name=CONFIG_NAME, version_base=None)
def _run(config: DictConfig) -> None:
    show_logs()
    note_start()
    note_launch(HydraConfig.get().overrides.task)
    with explained():
        check_all(config)
        log_phase("options, data, model and reward function are checked; starting Ray")
        from .runtime.node_start import run_on_ray
        from .runtime.shipping import shipped
        from .training.task_runner import AsyncDAPOTaskRunnerActor

        with told_how_to_go_on(), shipped(config) as first_actor:
            run_on_ray(config, first_actor(AsyncDAPOTaskRunnerActor))


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
def told_how_to_go_on() -> Iterator[None]:
    """Ctrl-C and SIGTERM (Ray makes a `SystemExit` of it) end the process with one line."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        number = signal.SIGINT if isinstance(stop, KeyboardInterrupt) else stop.code
        if number not in (signal.SIGINT, signal.SIGTERM):
            raise
        end_ray()
        sys.stderr.write(f"\nasync_dapo: interrupted; {GO_ON}\n")
        sys.exit(128 + number)


def end_ray() -> None:
    """Its processes end, and with them their output."""
    if (ray := sys.modules.get("ray")) is not None:
        ray.shutdown()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
