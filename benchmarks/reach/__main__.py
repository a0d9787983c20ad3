"""How many of verl's own example scripts `check` accepts: `python -m benchmarks.reach`, two minutes of a core.

Options of the scripts are in assets/reach/options.csv (how they were read: benchmarks/README.md, closed studies). Each
script's are composed with this recipe's entry and judged by every check that looks at options alone: data, models and
reward functions are not there.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile

import pandas as pd

from benchmarks.support.tables import markdown
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.runtime.logs import quiet
from recipe.async_dapo.startup.overrides import CommandLine, compose_what_is_right
from recipe.async_dapo.startup.preflight import findings
from recipe.async_dapo_lab.cpu.plugin.async_dapo_cpu.compat import find_vllm_under_its_cpu_name

from .summary import ACCEPTED, IGNORED, OPTIONS, REFUSED, VERDICTS, counts

BEFORE = "environment"  # the first check that looks at more than options
HARMLESS = ("nothing reads it", "ignored", "vLLM has no such argument")  # of an error: the option does nothing


def main() -> None:
    find_vllm_under_its_cpu_name()
    options = pd.read_csv(OPTIONS)
    rows = [
        {"tree": tree, "script": script} | verdict(list(given["option"]))
        for (tree, script), given in options.groupby(["tree", "script"])
    ]
    pd.DataFrame(rows).to_csv(VERDICTS, index=False)
    sys.stdout.write(markdown(counts()))


def verdict(overrides: Sequence[str]) -> dict[str, object]:
    """What becomes of a script with these overrides. A `+` may name what is an option of this version by now."""
    line = CommandLine(overrides=tuple(f"+{one}" if one[:1] == "+" != one[1:2] else one for one in overrides))
    with quiet():
        config, errors = compose_what_is_right(line)
        if config is not None:
            checks = takewhile(lambda found: found.name != BEFORE, findings(config))
            errors += [found.error for found in checks if found.error is not None]
    refusals = [error for error in errors if not is_harmless(error)]
    return {
        "training": "unknown" if config is None else config.model_engine,
        "verdict": REFUSED if refusals else IGNORED if errors else ACCEPTED,
        "left_out": len(errors) - len(refusals),
        "reasons": "\n".join(_told(refusals or errors)),
    }


def is_harmless(error: ConfigError) -> bool:
    return any(word in str(error.args[2]) for word in HARMLESS)


def _told(errors: Sequence[ConfigError]) -> Iterator[str]:
    return (" ".join(str(error).split()) for error in errors)


if __name__ == "__main__":
    main()
