"""What an evaluation keeps of its one validation, beside verl's dump of the answers."""

import json
from collections.abc import Mapping
from typing import Any

from ...async_dapo.config.options import AsyncDAPOConfig
from ...async_dapo.extensions.record.recorder import Recorder
from ...async_dapo.rollout.manager import RoundRecord
from ...async_dapo.training.validation import ValidationAnswers
from .figures import KEPT_FILE

NO_SOURCE = "unknown"  # as verl calls that of rows which name none


class EvaluationRecorder(Recorder):
    """Writes what the dump lacks: the data source of each prompt, and how long each answer is."""

    def __init__(self, options: AsyncDAPOConfig) -> None:
        super().__init__(options)
        self._sources: dict[str, str] = {}
        self._lengths_tok: dict[str, list[int]] = {}

    def validation_closed(self, record: RoundRecord) -> None:
        super().validation_closed(record)
        for outcome in record.summary.outcomes:
            self._lengths_tok[outcome.prompt_uid] = list(outcome.response_lens_tok)
            self._sources[outcome.prompt_uid] = outcome.source or NO_SOURCE

    def validated(self, answers: ValidationAnswers) -> None:
        self._sources.update(zip(answers.uids, answers.sources, strict=True))

    def log(self, data: Mapping[str, Any], step: int) -> None:
        super().log(data, step)
        assert self._folder is not None, "an evaluation has a folder for its record"
        kept = {"sources": self._sources, "lengths_tok": self._lengths_tok}
        (self._folder / KEPT_FILE).write_text(json.dumps(kept))
