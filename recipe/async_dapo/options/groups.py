"""Options that belong together: parts of `AsyncDAPOConfig`. Those of a decision are in `core/`, with it."""

from dataclasses import dataclass

from .values import OnRewardError

REWARD_IMPORT_LIMIT_S = 300.0  # longest time the reward function's module may take to import


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    timeout_s: float
    processes: int | None
    max_retries: int
    on_error: OnRewardError
    check_at_start: bool

    @property
    def call_limit_s(self) -> float | None:
        """Longest time from a call to its result. None = no limit for the wait in line: the time of a call, and that of
        each one ahead of it, runs from when a process takes it.
        """
        return self.timeout_s if self.processes == 0 else None

    @property
    def unreachable_limit_s(self) -> float:
        """Longest time that a call is repeated because its reward worker cannot be reached."""
        return REWARD_IMPORT_LIMIT_S + self.timeout_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsConfig:
    """Calls of agent loops: `async_dapo.calls`."""

    timeout_s: float
    short_s: float
    journal_limit_mb: int
    kept_loops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterConfig:
    """`algorithm.filter_groups`; `metric` is None when filtering is off."""

    metric: str | None
    max_num_gen_batches: int
