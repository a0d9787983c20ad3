"""The recipe's options: Hydra node `async_dapo` -> frozen dataclasses, validated once."""

from dataclasses import dataclass
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from .core.balance import Balance
from .core.over_sampling import OverSampling
from .core.prompt_history import Selection
from .core.round import RoundSpec
from .core.round_size import RoundSize
from .core.screening import Screening
from .core.staleness import StalenessLimit
from .core.stop_rules import StopRuleName
from .options.groups import CallsConfig, FilterConfig, RewardConfig
from .options.ranges import check_ranges
from .options.values import (
    Auto,
    ConfigError,
    ImportanceSampling,
    RolloutStrategy,
    SnapshotDtype,
    parse_options,
    whole_number,
)

CUSTOM_OPTIONS = "async_dapo"  # in verl's `rollout.custom`: what servers and training workers need of these options


def needs_bypass_loss(correction: DictConfig) -> bool:
    """Whether `algorithm.rollout_correction` asks, in bypass mode, for what only verl's own loss of that mode does."""
    return correction.rollout_rs is not None or correction.loss_type != "ppo_clip"


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncDAPOConfig:
    """Options of the recipe, and the few of verl's that its scheduling needs. The yaml documents units and ranges."""

    target_valid_groups: int  # B = data.train_batch_size
    rollout_n: int
    num_workers: int
    max_concurrent_prompts: int
    max_loads_per_server: int | None
    over_sampling_batch_size: int | Auto
    stop_rule: StopRuleName
    rollout_strategy: RolloutStrategy
    max_staleness: int | None
    max_partial_share: float | None
    rollout_pool_size: int | Auto | None
    max_prompt_length: int
    max_response_length: int
    max_tokens_per_round: int | None
    importance_sampling: ImportanceSampling
    snapshot_dtype: SnapshotDtype
    reward: RewardConfig
    calls: CallsConfig
    reward_function: str  # names it in errors
    filter: FilterConfig
    screening: Screening
    selection: Selection
    round_timeout_s: float
    stop_timeout_s: float
    engine_timeout_s: float
    delivery_tok: int
    weight_update_timeout_s: float
    length_bias_window: int
    report_dir: str | None

    @classmethod
    def from_hydra(cls, config: DictConfig) -> "AsyncDAPOConfig":
        """Parse and validate.

        Raises:
            ConfigError: for an option that is missing, unknown or out of range.
        """
        node = cast(dict[str, Any], OmegaConf.to_container(config.async_dapo, resolve=True))
        batch_size = whole_number(config, "data.train_batch_size")
        if node["stop_rule"] is None:
            keeps_nothing = node["rollout_strategy"] == RolloutStrategy.DISCARD or node["max_staleness"] == 0
            node["stop_rule"] = StopRuleName.FIFO if keeps_nothing else StopRuleName.FIRST_COMPLETED
        if node["importance_sampling"] is None:
            bypasses = OmegaConf.select(config, "algorithm.rollout_correction.bypass_mode")
            node["importance_sampling"] = ImportanceSampling.BYPASS if bypasses else ImportanceSampling.DECOUPLED
        filter_groups = config.algorithm.filter_groups
        if filter_groups.enable and not filter_groups.metric:
            raise ConfigError(
                "algorithm.filter_groups.metric",
                filter_groups.metric,
                "name a metric of the reward function's result, such as acc, or set "
                "algorithm.filter_groups.enable=False",
            )
        parsed = cls(
            **parse_options(
                cls,
                node
                | {
                    "target_valid_groups": batch_size,
                    "rollout_n": whole_number(config, "actor_rollout_ref.rollout.n"),
                    "max_prompt_length": whole_number(config, "data.max_prompt_length"),
                    "max_response_length": whole_number(config, "data.max_response_length"),
                    "num_workers": whole_number(config, "actor_rollout_ref.rollout.agent.num_workers"),
                    "reward_function": _reward_function(config),
                    "reward": RewardConfig(**parse_options(RewardConfig, node["reward"], "async_dapo.reward.")),
                    "calls": CallsConfig(**parse_options(CallsConfig, node["calls"], "async_dapo.calls.")),
                    "screening": Screening(**parse_options(Screening, node["screening"], "async_dapo.screening.")),
                    "selection": Selection(**parse_options(Selection, node["selection"], "async_dapo.selection.")),
                    "filter": FilterConfig(
                        metric=filter_groups.metric if filter_groups.enable else None,
                        max_num_gen_batches=whole_number(config, "algorithm.filter_groups.max_num_gen_batches"),
                    ),
                },
                "async_dapo.",
            )
        )
        check_ranges(parsed)
        return parsed

    @property
    def drains(self) -> bool:
        """Whether a round ends by awaiting what runs, rather than by interrupting it."""
        return self.stop_rule is StopRuleName.DRAIN or self.rollout_strategy is RolloutStrategy.CONSISTENT

    @property
    def keeps_tokens(self) -> bool:
        """Whether interrupted trajectories are continued in the next round."""
        return self.rollout_strategy is not RolloutStrategy.DISCARD

    @property
    def most_trainable(self) -> int | None:
        """Valid groups that a step and those that may still train on its tokens take; None = any number."""
        if not self.max_staleness or not self.keeps_tokens:
            return None  # without a limit, or nothing that a later step could find too old
        return (1 + self.max_staleness) * self.target_valid_groups

    @property
    def draws_again(self) -> bool:
        """Whether all that `fifo` did not wait for is generated again, complete or not: to keep what is complete, and
        draw only the others again, would prefer short answers."""
        return self.stop_rule is StopRuleName.FIFO and not self.keeps_tokens

    @property
    def keeps_kv(self) -> bool:
        """Whether interrupted requests stay in their engines over the weight update."""
        return self.rollout_strategy is RolloutStrategy.PARTIAL_STALE_KV

    @property
    def lanes_per_worker(self) -> int | None:
        """Groups a worker runs at once; None = no limit but the pool's."""
        return self.max_concurrent_prompts if self.rollout_pool_size is None else None

    @property
    def lanes_hold(self) -> int:
        """Trajectories that run at once where lanes bound them [count]."""
        return self.num_workers * self.max_concurrent_prompts * self.rollout_n

    @property
    def fixed_pool_size(self) -> int | None:
        """`rollout_pool_size` where it is a number."""
        return self.rollout_pool_size if isinstance(self.rollout_pool_size, int) else None

    @property
    def first_context_tok(self) -> int:
        """What a request is expected to take of the KV cache before any has been seen [tokens]."""
        return max(1, self.max_prompt_length + self.max_response_length // 2)

    def balance(self, *, most_per_server: int) -> Balance:
        """What the load balancer decides by.

        Args:
            most_per_server: where `max_loads_per_server` does not say [requests].
        """
        return Balance(
            max_per_server=self.max_loads_per_server or most_per_server,
            pool_size=self.fixed_pool_size,
            sizes_itself=self.rollout_pool_size is Auto.AUTO,
            first_context_tok=self.first_context_tok,
            limit_tok=self.max_response_length,
        )

    def over_sampling(self) -> OverSampling:
        """How many groups to hold, and to draw at a time."""
        batch_size = self.over_sampling_batch_size
        return OverSampling(
            target_valid_groups=self.target_valid_groups,
            batch_size=batch_size if isinstance(batch_size, int) else None,
            keeps_tokens=self.keeps_tokens and self.max_staleness != 0,
            max_partial_share=self.max_partial_share,
            screened_cost=self.screening.cost(self.rollout_n),
        )

    def round_size(self) -> RoundSize:
        """How many trajectories may be unfinished at once, where the pool sizes itself."""
        return RoundSize(
            trajectories_per_batch=self.target_valid_groups * self.rollout_n,
            longest_tok=self.max_response_length,
            staleness=StalenessLimit(max_staleness=self.max_staleness),
        )

    def round_spec(
        self,
        *,
        step: int,
        carried_valid_groups: int,
        must_finish: frozenset[str],
        pool_size: int | None,
        most_unfinished: int | None = None,
        valid_share: float,
    ) -> RoundSpec:
        """The training round of a step."""
        return RoundSpec(
            round_id=f"step-{step}",
            stop_rule=self.stop_rule,
            target_valid_groups=self.target_valid_groups,
            carried_valid_groups=carried_valid_groups,
            num_workers=self.num_workers,
            drains=self.drains,
            draws_again=self.draws_again,
            must_finish=must_finish,
            pool_size=pool_size,
            most_unfinished=most_unfinished,
            most_trainable=self.most_trainable,
            valid_share=valid_share,
        )


def _reward_function(config: DictConfig) -> str:
    """The user's function, also where `isolate_reward` has put another in its place."""
    custom = "reward.custom_reward_function"
    for key in (f"{custom}.reward_kwargs.isolated.function", custom):
        path, name = (OmegaConf.select(config, f"{key}.{part}") for part in ("path", "name"))
        if path is not None:
            return f"{name} of {path}"
    return "default_compute_score of pkg://verl.utils.reward_score"
