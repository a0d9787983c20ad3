"""Entry point: `python -m recipe.async_dapo.main_async_dapo <hydra overrides>`."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from .config.extensions import of_copy
from .config.options import CONFIG_FOLDER, CONFIG_NAME
from .config.values import ConfigError
from .runtime.garbage import collect_cycles_rarely
from .runtime.launch import note_launch
from .runtime.logs import last_line, log_phase, note_start, show_logs
from .runtime.node_start import end_ray, run_on_ray
from .runtime.verl_version import check_versions, tell_of_hidden_copies
from .startup.overrides import CommandLine, explained_overrides, show_usage
from .startup.preflight import check_all

MODULE = f"{__package__}.main_async_dapo"


def main(module: str = MODULE, composed: Callable[[DictConfig], None] = lambda config: None) -> None:
    """Check everything that can be checked, then train with verl on Ray.

    Args:
        composed: is given the run's options, before they are checked.
    """

    @hydra.main(config_path=str(CONFIG_FOLDER), config_name=CONFIG_NAME, version_base=None)
    def run(config: DictConfig) -> None:
        composed(config)
        _run(config)

    show_usage(sys.argv[1:], module=module, about="Trains.")
    collect_cycles_rarely()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # it raises what it would print
    with explained():
        check_versions()  # before Hydra reads verl's own configuration
        with explained_overrides(sys.argv[1:]):
            run()


def _run(config: DictConfig) -> None:
    show_logs()
    tell_of_hidden_copies()
    note_start()
    note_launch([*CommandLine.of(sys.argv[1:]).yaml_flags, *HydraConfig.get().overrides.task])
    with explained(), (of_copy("driver") or nullcontext)(config):
        check_all(config)
        log_phase("all checks have passed; starting Ray")
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


if __name__ == "__main__":
    main()
