"""One trained trajectory, turn by turn: `python -m recipe.async_dapo_lab.episode RUN_DIR [UID]`.

A run keeps a group of each step, up to some tokens; of a long run the newest. Without UID it lists them; the beginning
of one is enough.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..async_dapo.config.values import ConfigError
from .command_line import path
from .report.episodes import Decoder, Episode, as_html, as_text, listed, read_episodes
from .report.page import STYLE
from .run_files import EPISODES_FILE
from .saved_run import SavedRun


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="episode", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=path, metavar="RUN_DIR", help="folder of the run's record")
    parser.add_argument("uid", nargs="?", metavar="UID")
    parser.add_argument("--output", type=path, metavar="FILE", help="write an HTML page there, and no text")
    parser.add_argument(
        "--tokenizer", type=os.path.expanduser, metavar="MODEL", help="folder or name [that of the run's model]"
    )
    parsed = parser.parse_args(arguments)
    episodes = read_episodes(parsed.run / EPISODES_FILE)
    if not episodes:
        sys.exit(f"async_dapo: {parsed.run} has no {EPISODES_FILE}; runs of recipe.async_dapo_lab.train write it")
    if parsed.uid is None:
        sys.stdout.write(listed(episodes) + "\n")
        return
    found = [one for one in episodes if one.uid.startswith(parsed.uid)]
    if not found:
        sys.exit(f"async_dapo: no episode's uid begins with {parsed.uid}; without UID all are listed")
    if len(found) > 1 and parsed.output is not None:
        sys.exit(f"async_dapo: {len(found)} episodes begin so, a page has one:\n{listed(found)}")
    decoder = _decoder(parsed.tokenizer, parsed.run)
    if parsed.output is None:
        sys.stdout.write("\n\n".join(as_text(one, decoder) for one in found) + "\n")
        return
    _write(found[0], decoder, parsed.output)
    sys.stdout.write(f"{parsed.output}\n")


def _write(episode: Episode, decoder: Decoder, output: Path) -> None:
    output.write_text(as_html(episode, decoder, STYLE), encoding="utf-8")


def _decoder(named: str | None, run: Path) -> Decoder:
    from transformers import AutoTokenizer

    name = named
    if name is None:
        try:
            saved = SavedRun.at(run)
        except ConfigError as error:
            sys.exit(f"async_dapo: {error}")
        name = saved.description.settings.get("model") if saved.description is not None else None
    if name is None:
        sys.exit(f"async_dapo: {run} has no run.json that names the model; give --tokenizer")
    decoder: Decoder = AutoTokenizer.from_pretrained(name)
    return decoder


if __name__ == "__main__":
    main()
