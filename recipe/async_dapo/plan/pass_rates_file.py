"""Pass rates of prompts as a run has recorded them: `async_dapo.selection.history_file`."""

import numpy as np

from ..config import ConfigError
from ..core.prompt_history import PRIOR, PassCount
from ..files.history_file import load_history
from .workload import KnownPassRates


class RecordedPassRates(KnownPassRates):
    """Each prompt is one of the recorded ones, with a pass rate drawn from its posterior."""

    def __init__(self, counts: list[PassCount]) -> None:
        self._right = np.array([count.right for count in counts])
        self._wrong = np.array([count.wrong for count in counts])

    def rates(self, rng: np.random.Generator, prompts: int) -> np.ndarray:
        drawn = rng.integers(len(self._right), size=prompts)
        return rng.beta(self._right[drawn] + PRIOR, self._wrong[drawn] + PRIOR)


def load_pass_rates(path: str) -> RecordedPassRates:
    """
    Raises:
        ConfigError: when the file is missing, is something else, or knows no prompt.
    """
    counts = list(load_history(path, key="history_file").prompts.values())
    if not counts:
        raise ConfigError("history_file", path, "knows no prompt; it is written with a run's checkpoints")
    return RecordedPassRates(counts)
