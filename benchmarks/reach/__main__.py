"""How many of verl's own example scripts this recipe takes: `python -m benchmarks.reach`.

Each script's options are composed with this recipe's entry and judged by the checks of every start that read options
alone. Data, models and reward functions are not there, and are not judged. An option that verl 0.9.1 or vLLM does not
have is left out and counted. With a folder of scripts, their options are written down first.
"""

import argparse
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import pandas as pd
from omegaconf import DictConfig

from benchmarks.reach.scripts import options_of
from benchmarks.reach.summary import ACCEPTED, IGNORED, REFUSED, RESULTS, counts, reasons
from benchmarks.support.tables import markdown
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.values import ConfigError, ConfigErrors
from recipe.async_dapo.startup.overrides import compose_overrides
from recipe.async_dapo.startup.preflight import checks_of
from recipe.async_dapo.startup.verl_options import check_numbers
from recipe.async_dapo_lab.cpu.plugin.async_dapo_cpu.compat import find_vllm_under_its_cpu_name

CHECKS = ("verl's options", "options together", "vLLM's arguments", "verl's own checks")
UNREAD = ("ignore", "does not read")  # of an error: verl takes no notice of the option
UNKNOWN = "vLLM has no such argument"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="of shell scripts, such as verl's examples/grpo_trainer")
    parser.add_argument("--tree", default="verl", help="what the options of that folder are called; verl")
    args = parser.parse_args()
    find_vllm_under_its_cpu_name()
    options_file, verdicts_file = RESULTS / "options.csv", RESULTS / "verdicts.csv"
    options = pd.read_csv(options_file) if options_file.exists() else pd.DataFrame({"tree": []})
    if args.folder:
        found = [
            (args.tree, file.stem, option) for file in sorted(args.folder.glob("*.sh")) for option in options_of(file)
        ]
        own = pd.DataFrame(found, columns=["tree", "script", "option"])
        options = pd.concat([options[options["tree"] != args.tree], own])
        RESULTS.mkdir(parents=True, exist_ok=True)
        options.to_csv(options_file, index=False)
    rows = [
        {"tree": tree, "script": script} | verdict(list(given["option"]))
        for (tree, script), given in options.groupby(["tree", "script"])
    ]
    verdicts = pd.DataFrame(rows)
    verdicts.to_csv(verdicts_file, index=False)
    print(markdown(counts(verdicts)), markdown(reasons(verdicts)), sep="\n")


def verdict(overrides: Sequence[str]) -> dict[str, object]:
    """What becomes of a script with these overrides."""
    config, gone, errors = composed(list(overrides))
    if config is not None:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            errors = list(errors_of(config))
    gone += sum(UNKNOWN in str(error) for error in errors)
    errors = [error for error in errors if UNKNOWN not in str(error)]
    refusals = [error for error in errors if not any(word in str(error) for word in UNREAD)]
    return {
        "training": "unknown" if config is None else config.model_engine,
        "verdict": REFUSED if refusals else IGNORED if errors else ACCEPTED,
        "left_out": gone,
        "reasons": "\n".join(map(str, refusals or errors)),
    }


def composed(overrides: list[str]) -> tuple[DictConfig | None, int, list[ConfigError]]:
    """The configuration, options that were left out [count], and why there is no configuration.

    What a script adds may be among this version's options by now: `+` is read as `++`.
    """
    gone, overrides = 0, [f"+{override}" if override[0] == "+" != override[1] else override for override in overrides]
    while True:
        try:
            return compose_overrides(overrides), gone, []
        except ConfigError as error:
            kept = [override for override in overrides if override.partition("=")[0].lstrip("+") != error.args[0]]
            if len(kept) == len(overrides):
                return None, gone, [error]
            gone, overrides = gone + 1, kept


def errors_of(config: DictConfig) -> Iterator[ConfigError]:
    """What the checks refuse."""
    yield from raised(partial(check_numbers, config))
    parsed: list[AsyncDAPOConfig] = []
    yield from raised(lambda: parsed.append(AsyncDAPOConfig.from_hydra(config)))
    for options in parsed:
        checks = checks_of(config, options)
        for name in CHECKS:
            yield from raised(checks[name])


def raised(check: Callable[[], object]) -> Sequence[ConfigError]:
    try:
        check()
    except ConfigErrors as found:
        return found.errors
    except ConfigError as error:
        return [error]
    return []


if __name__ == "__main__":
    main()
