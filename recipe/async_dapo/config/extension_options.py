"""Parts of the recipe's options that extensions act on: calls of agent loops, and which prompts are drawn."""

from dataclasses import dataclass

from .values import CallsToTry, Seconds, SelectBy


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsConfig:
    """Calls of agent loops: `async_dapo.calls`."""

    timeout_s: Seconds
    check: CallsToTry | None
    short_s: float = 0.1  # a trajectory whose call takes longer leaves its place to another one [s]
    journal_limit_mb: int = 16  # of a trajectory's recorded calls, arguments and results [MiB]
    # Agent loops with a state of their own that one worker keeps alive over a stop [count].
    kept_loops: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which of the data loader's prompts are drawn, which `extensions/history` decides: `async_dapo.selection`."""

    by: SelectBy
    exploration: float = 0.1  # least probability with which a prompt is drawn, whatever its history [0-1, > 0]
    forgetting: float = 0.5  # what an earlier answer counts at the next visit [0-1]; 1 = nothing is forgotten
    # After so many steps a skipped prompt is drawn [steps, >= 1]: more than an epoch of common data sets, or nothing
    # would be saved.
    defer_steps: int = 100
