"""`lengths.jsonl` of a run: how long responses were and which groups were valid, for `plan --from-run`."""

import json
from collections.abc import Sequence
from pathlib import Path

from ..core.outcome import JUDGED, GroupOutcome, Verdict
from ..files.run_files import LENGTHS_FILE
from .bounded_file import text_before

MOST_GROUPS = 256  # of a step, evenly over its groups in the order of their ends: a long run's file stays small


class LengthsFile:
    """A line for each group that was judged. A resumed run goes on with its file, another one starts a new one.

    Args:
        folder: of the run; None: nothing is written.
    """

    def __init__(self, folder: str | None) -> None:
        self._path = None if folder is None else Path(folder) / LENGTHS_FILE
        self._is_begun = False

    def add(self, outcomes: Sequence[GroupOutcome], *, step: int) -> None:
        if self._path is None:
            return
        judged = [outcome for outcome in outcomes if outcome.verdict in JUDGED]
        stride = max(1, -(-len(judged) // MOST_GROUPS))
        lines = [
            {
                "step": step,
                "is_valid": outcome.verdict is Verdict.VALID,
                "response_lens_tok": list(outcome.response_lens_tok),
            }
            for outcome in judged[::stride]
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        if self._is_begun:
            with self._path.open("a") as stream:
                stream.write(text)
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(text_before(self._path, step) + text)
        self._is_begun = True
