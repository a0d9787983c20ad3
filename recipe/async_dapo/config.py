"""The recipe's options: Hydra node `async_dapo` -> frozen dataclasses, validated once.

Options that belong together are parts of `AsyncDAPOConfig`; those of a decision are in `core/`, with it. An option's
range is part of its type. What does not go together is refused by `check_together`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from msgspec import Meta
from omegaconf import DictConfig, OmegaConf

from .core.balance import Balance
from .core.over_sampling import OverSampling, RoundSize
from .core.prompt_history import Selection
from .core.rolling_round import RollingSpec
from .core.round import RoundSpec
from .core.staleness import StalenessLimit
from .core.stop_rules import StopRuleName
from .option_values import (
    Auto,
    ConfigError,
    Drafts,
    ImportanceSampling,
    OnRewardError,
    Placement,
    RolloutStrategy,
    number,
    parse_options,
    whole_number,
)

REWARD_IMPORT_LIMIT_S = 300.0  # longest time the reward function's module may take to import

CONFIG_FOLDER = Path(__file__).parent / "config"
CONFIG_NAME = "async_dapo_trainer"

Seconds = Annotated[float, Meta(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """The reward function's calls: `async_dapo.reward`."""

    timeout_s: Seconds
    processes: Annotated[int | None, Meta(ge=0)]
    on_error: OnRewardError
    # Further attempts after a call that raised, timed out or returned no finite number [count].
    max_retries: int = 1

    @property
    def call_limit_s(self) -> float | None:
        """Longest time from a call to its result. None: waiting for a free process is not limited; only the run itself
        is (`timeout_s`).
        """
        return self.timeout_s if self.processes == 0 else None

    @property
    def unreachable_limit_s(self) -> float:
        """Longest time that a call is repeated because its reward worker cannot be reached."""
        return REWARD_IMPORT_LIMIT_S + self.timeout_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsConfig:
    """Calls of agent loops: `async_dapo.calls`."""

    timeout_s: Seconds
    short_s: float = 0.1  # a trajectory whose call takes longer leaves its place to another one [s]
    journal_limit_mb: int = 16  # of a trajectory's recorded calls, arguments and results [MiB]
    # Agent loops with a state of their own that one worker keeps alive over a stop [count].
    kept_loops: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterConfig:
    """`algorithm.filter_groups`; `metric` is None when filtering is off."""

    metric: str | None
    max_num_gen_batches: int  # 0 = no limit


def check_together(options: "AsyncDAPOConfig") -> None:
    """
    Raises:
        ConfigError: naming key, value and remedy.
    """
    _check_staleness(options)
    _check_placement(options)
    _check_filter(options)
    _check_selection(options)


def _check_staleness(options: "AsyncDAPOConfig") -> None:
    """What is kept over a step, and how much of it."""
    if options.max_tokens_per_round is not None and options.rollout_strategy is not RolloutStrategy.PARTIAL:
        raise ConfigError(
            "async_dapo.max_tokens_per_round",
            options.max_tokens_per_round,
            f"does not go with async_dapo.rollout_strategy={options.rollout_strategy}, under which one that is "
            "set aside loses its tokens or KV cache, or has to end under one policy; choose "
            "async_dapo.rollout_strategy=partial or leave it null",
        )


def _check_placement(options: "AsyncDAPOConfig") -> None:
    """Rounds of engines that have GPUs of their own go on while the trainer trains."""
    if options.placement is Placement.COLOCATED:
        return
    refused: dict[str, tuple[bool, str]] = {
        "rollout_strategy": (
            options.keeps_tokens,
            "throws away what a stop interrupts, and no step stops the engines; choose partial, partial_stale_kv or "
            "consistent",
        ),
        "max_staleness": (
            options.max_staleness != 0,
            "engines would wait for every training step; set it to 1 or more",
        ),
        "stop_rule": (
            options.stop_rule is StopRuleName.FIRST_COMPLETED,
            "no step stops the engines, and the oldest groups are trained first; leave it null",
        ),
        "max_tokens_per_round": (options.max_tokens_per_round is None, "a round has no end; leave it null"),
        "over_sampling_batch_size": (
            options.over_sampling_batch_size == Auto.AUTO
            or options.over_sampling_batch_size > options.target_valid_groups,
            "the batch in training counts, so that engines would begin nothing meanwhile; leave it at auto, or set it "
            f"above data.train_batch_size={options.target_valid_groups}",
        ),
    }
    for name, (is_right, remedy) in refused.items():
        if not is_right:
            raise ConfigError(
                f"async_dapo.{name}", getattr(options, name), f"with async_dapo.placement=separate: {remedy}"
            )


def _check_filter(options: "AsyncDAPOConfig") -> None:
    if options.filter.metric is not None and options.rollout_n == 1:
        raise ConfigError(
            "actor_rollout_ref.rollout.n",
            1,
            "a group of one never varies, so the filter drops every group; set n >= 2 or "
            "algorithm.filter_groups.enable=False",
        )


def _check_selection(options: "AsyncDAPOConfig") -> None:
    selection = options.selection
    if selection.records and options.filter.metric is None:
        raise ConfigError(
            "async_dapo.selection.by",
            selection.by.value,
            "a history counts answers by the filter's metric, and there is no filter; set "
            "algorithm.filter_groups.enable=True and algorithm.filter_groups.metric, or by=uniform and "
            "history_file=null",
        )


def training_gpus(config: DictConfig) -> int:
    gpus: int = config.trainer.nnodes * config.trainer.n_gpus_per_node
    return gpus


def engine_gpus(config: DictConfig) -> int:
    """GPUs that engines run on, all together."""
    if config.async_dapo.placement != Placement.SEPARATE:
        return training_gpus(config)
    rollout = config.actor_rollout_ref.rollout
    gpus: int = rollout.nnodes * rollout.n_gpus_per_node
    return gpus


def all_gpus(config: DictConfig) -> int:
    is_separate = config.async_dapo.placement == Placement.SEPARATE
    return training_gpus(config) + (engine_gpus(config) if is_separate else 0)


def gpus_per_engine(config: DictConfig) -> int:
    rollout = config.actor_rollout_ref.rollout
    gpus: int = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    return gpus


def num_engines(config: DictConfig) -> int:
    return engine_gpus(config) // gpus_per_engine(config)


def checkpoints_to_keep(config: DictConfig, model: str = "actor") -> int | None:
    """None = all: so verl understands null, and whatever is not positive."""
    keep: int | None = config.trainer[f"max_{model}_ckpt_to_keep"]
    return keep if keep and keep > 0 else None


def needs_bypass_loss(correction: DictConfig) -> bool:
    """Whether `algorithm.rollout_correction` asks, in bypass mode, for what only verl's own loss of that mode does."""
    return correction.rollout_rs is not None or correction.loss_type != "ppo_clip"


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncDAPOConfig:
    """Options of the recipe, and the few of verl's that its scheduling needs. The yaml documents units and ranges."""

    target_valid_groups: int  # B = data.train_batch_size
    rollout_n: int
    num_workers: int
    placement: Placement
    max_concurrent_prompts: Annotated[int, Meta(ge=1)]
    max_loads_per_server: Annotated[int | None, Meta(ge=1)]
    over_sampling_batch_size: Annotated[int | Auto, Meta(ge=1)]
    stop_rule: StopRuleName
    rollout_strategy: RolloutStrategy
    max_staleness: Annotated[int | None, Meta(ge=0)]
    max_partial_share: Annotated[float | None, Meta(ge=0, le=1)]
    rollout_pool_size: Annotated[int | Auto | None, Meta(ge=1)]
    max_prompt_length: int
    max_response_length: int
    max_tokens_per_round: Annotated[int | None, Meta(ge=1)]
    importance_sampling: ImportanceSampling
    reward: RewardConfig
    calls: CallsConfig
    reward_function: str  # names it in errors
    filter: FilterConfig
    selection: Selection
    round_timeout_s: Seconds
    engine_timeout_s: Seconds
    drafts: Drafts | None
    report_dir: str | None
    recorder: str | None
    # Tokens of a request that a server delivers at a time: they are lost at most when it dies; fewer cost more calls.
    delivery_tok: int = 512

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
        groups = "algorithm.filter_groups"
        filter_groups = config.algorithm.filter_groups
        if filter_groups.enable and not filter_groups.metric:
            raise ConfigError(
                f"{groups}.metric",
                filter_groups.metric,
                f"name a metric of the reward function's result, such as acc, or set {groups}.enable=False",
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
                    "selection": Selection(**parse_options(Selection, node["selection"], "async_dapo.selection.")),
                    "filter": FilterConfig(
                        metric=filter_groups.metric if filter_groups.enable else None,
                        max_num_gen_batches=max(0, number(config, f"{groups}.max_num_gen_batches", int)),
                    ),
                },
                "async_dapo.",
            )
        )
        check_together(parsed)
        return parsed

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
        return Balance(**self.load_balancer(most_per_server=most_per_server)["balance"])

    def load_balancer(self, *, most_per_server: int) -> dict[str, Any]:
        """The options of `GlobalLoadBalancer`, as they stand in the router yaml."""
        return {
            "balance": {
                "max_per_server": self.max_loads_per_server or most_per_server,
                "pool_size": self.fixed_pool_size,
                "sizes_itself": self.rollout_pool_size is Auto.AUTO,
                "first_context_tok": self.first_context_tok,
                "limit_tok": self.max_response_length,
                "keeps_siblings": self.drafts is not None,
            },
            "pause_mode": "keep" if self.keeps_kv else "abort",
            "engine_timeout_s": self.engine_timeout_s,
        }

    def rolling_update(self) -> dict[str, Any]:
        """What `RollingLoadBalancer` needs beside that. An engine that is behind by more than `max_staleness` takes no
        further requests, with `consistent` by half of that: what it has would grow too old."""
        drains = self.rollout_strategy is RolloutStrategy.CONSISTENT
        most = self.max_staleness
        return {
            "drains": drains,
            "max_lag": most // 2 if drains and most is not None else most,
            "pause_mode": "hold" if self.keeps_kv else "abort",
        }

    def over_sampling(self) -> OverSampling:
        """How many groups to hold, and to draw at a time."""
        batch_size = self.over_sampling_batch_size
        return OverSampling(
            target_valid_groups=self.target_valid_groups,
            batch_size=batch_size if isinstance(batch_size, int) else None,
            keeps_tokens=self.keeps_tokens and self.max_staleness != 0,
            max_partial_share=self.max_partial_share,
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
        counted_share: float,
    ) -> RoundSpec:
        """The training round of a step."""
        return RoundSpec(
            round_id=f"step-{step}",
            stop_rule=self.stop_rule,
            target_valid_groups=self.target_valid_groups,
            carried_valid_groups=carried_valid_groups,
            drains=self.drains,
            draws_again=self.draws_again,
            must_finish=must_finish,
            pool_size=pool_size,
            most_unfinished=most_unfinished,
            most_trainable=self.most_trainable,
            valid_share=valid_share,
            counted_share=counted_share,
        )

    def rolling_spec(
        self,
        *,
        opened_at: int,
        step: int,
        carried: tuple[tuple[str, int], ...],
        pool_size: int | None,
        most_unfinished: int | None,
        most_begun: int,
        counted_share: float,
    ) -> RollingSpec:
        """The round that goes on from the step that it was opened at, as from this step on."""
        return RollingSpec(
            round_id=f"from-step-{opened_at}",
            stop_rule=self.stop_rule,
            target_valid_groups=self.target_valid_groups,
            carried_valid_groups=len(carried),
            drains=self.drains,
            pool_size=pool_size,
            most_unfinished=most_unfinished,
            counted_share=counted_share,
            step=step,
            max_staleness=self.max_staleness,
            carried=carried,
            most_begun=most_begun,
        )


def _reward_function(config: DictConfig) -> str:
    """The user's function, also where `isolate_reward` has put another in its place."""
    custom = "reward.custom_reward_function"
    for key in (f"{custom}.reward_kwargs.isolated.function", custom):
        path, name = (OmegaConf.select(config, f"{key}.{part}") for part in ("path", "name"))
        if path is not None:
            return f"{name} of {path}"
    return "default_compute_score of pkg://verl.utils.reward_score"
