"""The recipe's options: Hydra node `async_dapo` -> frozen dataclasses, validated once (`reading.py`).

Options that belong together are parts of `AsyncDAPOConfig`. An option's range is part of its type.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig

from ..core.over_sampling import OverSampling, RoundSize
from ..core.partial_share import CappedOverSampling
from ..core.pool import PromptPool
from ..core.round import RoundSpec
from ..core.staleness import StalenessLimit
from ..core.stop_rules import StopRuleName, ending_of
from .reading import read_options
from .values import (
    Auto,
    CallsToTry,
    Count,
    Drafts,
    ImportanceSampling,
    NotNegative,
    OnRewardError,
    Placement,
    Positive,
    RolloutStrategy,
    Seconds,
    SelectBy,
    Share,
    Shares,
    Sources,
    number,
)

S = TypeVar("S", bound=RoundSpec)

REWARD_IMPORT_LIMIT_S = 300.0  # longest time the reward function's module may take to import

CONFIG_FOLDER = Path(__file__).parent
CONFIG_NAME = "async_dapo_trainer"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """The reward function's calls: `async_dapo.reward`."""

    timeout_s: Seconds
    processes: NotNegative | None
    on_error: OnRewardError
    # Further attempts after a call that raised, timed out or returned no finite number [count].
    max_retries: int = 1
    # Calls wait for a place before they run, and what runs them keeps `timeout_s`: see `CALLED` of `reading.py`.
    waits_in_line: bool = False

    @property
    def call_limit_s(self) -> float | None:
        """Longest time from a call to its result [s]. None: waiting in line is not limited; only the run itself is
        (`timeout_s`), and what runs it sees to that.
        """
        return None if self.waits_in_line else self.timeout_s

    @property
    def unreachable_limit_s(self) -> float:
        """Longest time that a call is repeated because its reward worker cannot be reached."""
        return REWARD_IMPORT_LIMIT_S + self.timeout_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterConfig:
    """`algorithm.filter_groups`; `metric` is None when filtering is off."""

    metric: str | None
    max_num_gen_batches: int  # 0 = no limit

    @classmethod
    def of(cls, config: DictConfig) -> "FilterConfig":
        groups = config.algorithm.filter_groups
        limit = number(config, "algorithm.filter_groups.max_num_gen_batches", int)
        return cls(metric=groups.metric or "" if groups.enable else None, max_num_gen_batches=max(0, limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncDAPOConfig:
    """Options of the recipe, and the few of verl's that its scheduling needs. The yaml documents units and ranges."""

    target_valid_groups: int  # B = data.train_batch_size
    rollout_n: int
    num_workers: int
    placement: Placement
    max_concurrent_prompts: Count
    max_loads_per_server: Count | None
    over_sampling_batch_size: Count | Auto
    stop_rule: StopRuleName
    rollout_strategy: RolloutStrategy
    max_staleness: NotNegative | None
    max_partial_share: Share | None
    rollout_pool_size: Count | Auto | None
    max_prompt_length: int
    max_response_length: int
    max_tokens_per_round: Count | None
    importance_sampling: ImportanceSampling
    reward: RewardConfig
    calls: CallsConfig
    reward_function: str  # names it in errors
    filter: FilterConfig
    selection: Selection
    sources: Shares | Sources | None
    round_timeout_s: Seconds
    engine_timeout_s: Seconds
    drafts: Drafts | None
    host_kv_gib: Positive | None
    report_dir: str | None
    recorder: str | None
    # Tokens of a request that a server delivers at a time: they are lost at most when it dies; fewer cost more calls.
    delivery_tok: int = 512
    extensions: tuple[str, ...] = ()  # those of the run, by name

    @classmethod
    def from_hydra(cls, config: DictConfig) -> "AsyncDAPOConfig":
        """Parse and validate.

        Raises:
            ConfigError: for an option that is missing, unknown or out of range.
        """
        return read_options(cls, config, filter=FilterConfig.of(config))

    @property
    def is_separate(self) -> bool:
        return self.placement is Placement.SEPARATE

    @property
    def stop_timeout_s(self) -> float:
        """Longest time from the stop until every engine is idle and every worker has reported [s]. Above
        `engine_timeout_s`, after which an engine that does not answer is given up, so that the others can go on.
        """
        return 2.5 * self.engine_timeout_s

    @property
    def weight_update_timeout_s(self) -> float:
        """Longest time that one weight update may take in all, the trainer's own share included [s]."""
        return 15 * self.engine_timeout_s

    @property
    def drains(self) -> bool:
        """Whether a round ends by awaiting what runs, rather than by interrupting it."""
        return ending_of(self.stop_rule).drains or self.is_consistent

    @property
    def is_consistent(self) -> bool:
        """Whether every trajectory ends under the policy that began it."""
        return self.rollout_strategy is RolloutStrategy.CONSISTENT and self.keeps_tokens

    @property
    def keeps_tokens(self) -> bool:
        """Whether interrupted trajectories are continued in the next round. Without old tokens there is nothing to
        continue: every strategy then does as `discard`."""
        return self.rollout_strategy is not RolloutStrategy.DISCARD and self.max_staleness != 0

    @property
    def mixes_versions(self) -> bool:
        """Whether a trajectory may go on under another policy than the one that began it."""
        return self.keeps_tokens and not self.is_consistent

    @property
    def staleness(self) -> StalenessLimit:
        return StalenessLimit(max_staleness=self.max_staleness)

    @property
    def draws_again(self) -> bool:
        """Whether all for which the stop rule did not wait is generated again, complete or not."""
        return ending_of(self.stop_rule).draws_again and not self.keeps_tokens

    @property
    def has_old_kv(self) -> bool:
        """Whether interrupted trajectories go on with keys and values of the old weights."""
        return self.rollout_strategy is RolloutStrategy.PARTIAL_STALE_KV and self.keeps_tokens

    @property
    def slots_per_worker(self) -> int | None:
        """Groups a worker runs at once; None = no limit but the pool's."""
        return self.max_concurrent_prompts if self.rollout_pool_size is None else None

    @property
    def slots_hold(self) -> int:
        """Trajectories that run at once where slots bound them [count]."""
        return self.num_workers * self.max_concurrent_prompts * self.rollout_n

    @property
    def fixed_pool_size(self) -> int | None:
        """`rollout_pool_size` where it is a number."""
        return self.rollout_pool_size if isinstance(self.rollout_pool_size, int) else None

    def over_sampling(self) -> OverSampling:
        """How many groups to hold, and to draw at a time."""
        batch_size, cap = self.over_sampling_batch_size, self.max_partial_share
        kind = OverSampling if cap is None else partial(CappedOverSampling, max_partial_share=cap)
        return kind(
            target_valid_groups=self.target_valid_groups,
            batch_size=batch_size if isinstance(batch_size, int) else None,
            keeps_tokens=self.keeps_tokens,
            # Without old tokens there is nothing that a later step could find too old.
            versions=None if self.max_staleness is None or not self.keeps_tokens else 1 + self.max_staleness,
        )

    def round_size(self) -> RoundSize:
        """How many trajectories may generate and be unfinished at once."""
        return RoundSize(
            trajectories_per_batch=self.target_valid_groups * self.rollout_n,
            longest_tok=self.max_response_length,
            staleness=self.staleness,
            named=self.fixed_pool_size,
            sizes_itself=self.rollout_pool_size is Auto.AUTO,
        )

    def round_spec(self, kind: type[S], *, capacity: int, pool: PromptPool, round_size: RoundSize, **more: Any) -> S:
        """A training round.

        Args:
            capacity: requests that the engines may have in flight.
            pool: has what is carried into the round, and the mix of its batch.
            more: further fields of the round.
        """
        return kind(
            stop_rule=self.stop_rule,
            parts=pool.mix.quotas(pool.carried),
            drains=self.drains,
            draws_again=self.draws_again,
            pool_size=round_size.pool_size(capacity),
            most_unfinished=round_size.most_unfinished(pool.mix.over_sampling.valid_share),
            **more,
        )
