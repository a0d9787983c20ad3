"""Stands for the process of the first minute: writes facts that it is given, hangs, raises, or has no engine."""

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipe.async_dapo_lab.gpu_check.minute import ENGINES, MinuteSettings, Notes, Part

_FACTS, _DOES = "STANDS_FOR_FACTS", "STANDS_FOR_DOES"


def environment(facts: Mapping[str, Any], does: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, _FACTS: json.dumps(facts), _DOES: json.dumps(does)}


def with_limit(part: Part, *, limit_s: float) -> Part:
    return replace(part, limit_s=limit_s)


def main(settings: MinuteSettings) -> None:
    facts, does = json.loads(os.environ[_FACTS]), json.loads(os.environ[_DOES])
    notes = Notes(settings)
    for engine in settings.engines:
        notes.engine(has_started=False)
        for key in ENGINES[engine]:
            with notes.part(key) as found:
                if does.get(key) == "hang":
                    time.sleep(600)
                notes.engine(has_started=does.get(key) != "not_start")
                assert key not in does, "num_output_placeholders"
                found |= facts[key]


if __name__ == "__main__":
    main(MinuteSettings(**json.loads(Path(sys.argv[1]).read_text())))
