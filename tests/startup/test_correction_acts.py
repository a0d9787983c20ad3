"""Every correction option reaches the loss of verl's V1 trainer: options -> wiring -> verl's own advantage and loss."""

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from tensordict import NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.tensordict_utils import assign_non_tensor
from verl.workers.utils.losses import ppo_loss

from recipe.async_dapo import store
from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.values import ImportanceSampling
from recipe.async_dapo.startup.rules import check_options
from recipe.async_dapo.training.importance_sampling import wire_importance_sampling
from recipe.async_dapo.training.passes import Passes
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer

from ..support.ranks import nested

KEYS = ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]
PROMPT_LEN = 2
RESPONSE_LENS = [3, 5, 4, 2]
BEHAVIOUR = -2.0  # log-prob of every token under the policy that sampled it [nats]


def proximal_minus_behaviour(trajectory: int, position: int) -> float:
    """How far the newest policy has moved from the one that sampled a token [nats]."""
    return [0.0, 1.2, -0.6, 0.05][trajectory] + 0.09 * (-1) ** position


def current_minus_proximal(trajectory: int, position: int) -> float:
    """How far the policy being trained has moved since [nats]."""
    return [0.0, 0.02, -0.03, 0.01][trajectory] * (1 + position)


def per_token(value: Callable[[int, int], float]) -> list[torch.Tensor]:
    return [torch.tensor([value(i, t) for t in range(length)]) for i, length in enumerate(RESPONSE_LENS)]


def mixture_at(trajectory: int, position: int) -> float:
    """The log-prob of what sampled a token, as the balance heuristic says."""
    return BEHAVIOUR + 0.3 - 0.05 * position * trajectory


def mixture(config: DictConfig, log_probs: Callable[..., Any]) -> Any:
    """The extension, which a copy may lack, with log-probs that are given."""
    from recipe.async_dapo.extensions.mixture.correction import Mixture

    own = Mixture.__new__(Mixture)
    own._correction, own.log_probs = config.algorithm.rollout_correction, log_probs
    return own


class Queue:
    """The data plane of one batch, in this process."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {
            "uid": NonTensorStack(*[key.split("_")[0] for key in KEYS]),
            "prompts": nested([torch.ones(PROMPT_LEN)] * 4),
            "responses": nested(per_token(lambda i, t: 1.0)),
            "response_mask": nested([torch.ones(length, dtype=torch.int64) for length in RESPONSE_LENS]),
            "rm_scores": nested([torch.eye(length)[-1] * (i % 2) for i, length in enumerate(RESPONSE_LENS)]),
            "rollout_log_probs": nested(per_token(lambda i, t: BEHAVIOUR)),
            "old_log_probs": nested(per_token(lambda i, t: BEHAVIOUR + proximal_minus_behaviour(i, t))),
            "loss_mask": nested([torch.ones(length, dtype=torch.int64) for length in RESPONSE_LENS]),
            "policy_versions": nested([torch.zeros(length, dtype=torch.int32) for length in RESPONSE_LENS]),
        }

    def kv_batch_get(self, *, keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        return TensorDict({name: self.fields[name] for name in select_fields if name in self.fields}, batch_size=4)

    def kv_batch_put(self, *, keys: list[str], partition_id: str, fields: TensorDict) -> KVBatchMeta:
        self.fields |= dict(fields.items())
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=[{}] * 4)


@pytest.fixture
def loss(run, monkeypatch):
    """The policy loss of one mini-batch under the given overrides."""

    def compute(
        *overrides: str,
        advantage: Any = AsyncDAPOTrainer._compute_advantage,
        metrics: dict[str, Any] | None = None,
        oldest_version: int = 0,
        sampled_by: Callable[..., Any] = lambda *_, **__: per_token(mixture_at),
        **changed: torch.Tensor,
    ) -> float:
        config = run("actor_rollout_ref.rollout.calculate_log_probs=True", *overrides)
        options = AsyncDAPOConfig.from_hydra(config)
        check_options(config, options)
        wire_importance_sampling(config, options.importance_sampling)
        queue = Queue()
        queue.fields |= changed
        monkeypatch.setattr(trainer_base, "tq", queue)
        monkeypatch.setattr(store, "tq", queue)
        batch = KVBatchMeta(partition_id="train", keys=KEYS, tags=[{"min_global_steps": 0}] * 4)
        withheld_tok = store.withhold(batch, oldest_version=oldest_version)
        trainer = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
        trainer.config, trainer.global_steps, trainer.use_critic = config, 1, False
        workers = SimpleNamespace(_dispatch_info={"actor": [0]}, set_loss_fn=lambda loss: None)
        trainer.actor_rollout_wg = workers
        trainer.replay_buffer = SimpleNamespace(withheld_tok=withheld_tok)
        trainer._passes = passes = Passes(config, options, workers)
        passes._has_judged_engines = True
        if options.importance_sampling is ImportanceSampling.MIXTURE:
            passes._own = mixture(config, sampled_by)
        if config.algorithm.rollout_correction.bypass_mode:  # else the trainer asks the actor, which said what is there
            trainer._compute_old_log_prob(batch, {})
        advantage(trainer, batch, {} if metrics is None else metrics)
        actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        names = [name for name in queue.fields if name not in ("uid", "rm_scores", "rollout_log_probs", "returns")]
        data = TensorDict({name: queue.fields[name] for name in names}, batch_size=4)
        num_tokens = int(queue.fields["loss_mask"].values().sum())  # as FSDPEngine.forward_backward_batch counts them
        assign_non_tensor(data, dp_size=1, batch_num_tokens=num_tokens, global_batch_size=4)
        current = per_token(
            lambda i, t: BEHAVIOUR + proximal_minus_behaviour(i, t) + current_minus_proximal(i, t)
        )  # a model's output for a token stands one place before it
        outputs = [torch.cat([torch.zeros(PROMPT_LEN - 1), row, torch.zeros(1)]) for row in current]
        value, _ = ppo_loss(actor, {"log_probs": nested(outputs)}, data)
        return float(value)

    return compute


def expected(log_ratio: Callable[[int, int], float], weight: Callable[[int, int], float] = lambda i, t: 1.0) -> float:
    """DAPO's token-mean of -A min(r, clip r), by hand: clip 0.2 / 0.28, dual clip 10, rewards 0 and 1."""
    advantage = 0.5 / (math.sqrt(0.5) + 1e-6)
    total = 0.0
    for i, length in enumerate(RESPONSE_LENS):
        a = advantage if i % 2 else -advantage
        for t in range(length):
            r = math.exp(log_ratio(i, t))
            token = -min(r * a, min(max(r, 0.8), 1.28) * a)
            total += weight(i, t) * (token if a > 0 else min(token, -a * 10.0))
    return total / sum(RESPONSE_LENS)


CORRECTION = "algorithm.rollout_correction."
NONE = "async_dapo.importance_sampling=none"
BYPASS = "async_dapo.importance_sampling=bypass"
DECOUPLED = "async_dapo.importance_sampling=decoupled"
MIXTURE = "async_dapo.importance_sampling=mixture"
SEQUENCE_MASK = "rollout_rs=seq_mean_k1 rollout_rs_threshold=0.3_1.1"
OPTIONS = {
    BYPASS: [
        "",
        SEQUENCE_MASK,
        "rollout_rs=token_k1 rollout_rs_threshold=0.5_2.0",
        f"loss_type=reinforce {SEQUENCE_MASK}",
        "loss_type=reinforce rollout_is=token",
    ],
    DECOUPLED: [
        "",
        "rollout_is_threshold=1.5",
        "rollout_is_threshold=0.9_1.1",
        "rollout_is=sequence",
        "rollout_is_batch_normalize=True",
        SEQUENCE_MASK,
    ],
    MIXTURE: ["", "rollout_is_threshold=1.1", "rollout_is=sequence", "rollout_is_batch_normalize=True", SEQUENCE_MASK],
}


def test_every_option_changes_the_loss_of_its_mode(loss) -> None:
    losses = {
        mode: {more: loss(mode, *(f"{CORRECTION}{option}" for option in more.split())) for more in options}
        for mode, options in OPTIONS.items()
    }
    losses[MIXTURE]["decoupled"] = losses[DECOUPLED][""]
    without = loss(NONE)
    for mode, of_mode in losses.items():
        for (first, one), (second, other) in itertools.combinations([("none", without), *of_mode.items()], 2):
            assert not math.isclose(one, other, rel_tol=1e-4), (mode, first, second)


def ratio(i: int, t: int) -> float:
    return math.exp(proximal_minus_behaviour(i, t))


def ratio_to_mixture(i: int, t: int) -> float:
    return math.exp(BEHAVIOUR + proximal_minus_behaviour(i, t) - mixture_at(i, t))


@pytest.mark.parametrize(
    ("mode", "log_ratio", "weight"),
    [
        (NONE, current_minus_proximal, lambda i, t: 1.0),
        (DECOUPLED, current_minus_proximal, lambda i, t: min(ratio(i, t), 2.0)),
        (MIXTURE, current_minus_proximal, lambda i, t: min(ratio_to_mixture(i, t), 2.0)),
        # CoPRIS (arXiv:2511.05589), eq. 8: the whole ratio to the behaviour policy is clipped.
        (BYPASS, lambda i, t: proximal_minus_behaviour(i, t) + current_minus_proximal(i, t), lambda i, t: 1.0),
    ],
    ids=["none", "decoupled", "mixture", "bypass"],
)
def test_a_mode_s_loss_is_ppo_s_on_its_ratio_times_its_truncated_weight(loss, mode, log_ratio, weight) -> None:
    assert loss(mode) == pytest.approx(expected(log_ratio, weight), rel=1e-5)


def test_the_default_is_decoupled_and_leaves_verl_s_own_bypass_alone(loss) -> None:
    assert loss() == loss(DECOUPLED)
    assert loss(f"{CORRECTION}bypass_mode=True") == loss(BYPASS)


def test_rejected_tokens_leave_the_number_that_the_loss_is_divided_by_as_well_as_the_mask(loss) -> None:
    """verl takes them out of `response_mask` and divides by `loss_mask`: the more it rejects, the smaller the loss."""
    band = (DECOUPLED, f"{CORRECTION}rollout_rs=token_k1", f"{CORRECTION}rollout_rs_threshold=0.5_2.0")

    def weight(i: int, t: int) -> float:
        return min(ratio(i, t), 2.0) if 0.5 <= 1 / ratio(i, t) <= 2.0 else 0.0

    kept = sum(weight(i, t) > 0 for i, length in enumerate(RESPONSE_LENS) for t in range(length))
    assert 0 < kept < sum(RESPONSE_LENS)
    over_all = expected(current_minus_proximal, weight)
    assert loss(*band, advantage=PPOTrainer._compute_advantage) == pytest.approx(over_all, rel=1e-5), "verl alone"
    assert loss(*band) == pytest.approx(over_all * sum(RESPONSE_LENS) / kept, rel=1e-5)


@pytest.mark.parametrize(
    ("shuffle", "prompts", "counted"),
    [(False, 1, [1, 1, 3, 0]), (True, 1, [1, 1, 3, 1]), (True, 2, [0, 0, 3, 0])],
    ids=["updates", "updates nobody knows", "one update"],
)
def test_an_update_that_is_rejected_whole_is_divided_by_a_token_of_each_trajectory(
    loss, shuffle: bool, prompts: int, counted: list[int]
) -> None:
    """Its loss would be 0 / 0 otherwise. Where ranks shuffle between updates, each trajectory stands for itself."""
    band = (f"{CORRECTION}rollout_rs=token_k1", f"{CORRECTION}rollout_rs_threshold=0.5_2.0")
    cut = ("rollout.n=2", f"actor.ppo_mini_batch_size={prompts}", "actor.ppo_micro_batch_size_per_gpu=2")
    updates = (*cut, f"actor.shuffle={shuffle}", "actor.data_loader_seed=1")
    rejected = [(0, t) for t in range(3)] + [(1, t) for t in range(5)] + [(2, 0), (3, 0), (3, 1)]
    log_probs = per_token(lambda i, t: BEHAVIOUR + 5.0 * ((i, t) in rejected))
    loss(DECOUPLED, *band, *(f"actor_rollout_ref.{each}" for each in updates), old_log_probs=nested(log_probs))
    assert [int(mask_T.sum()) for mask_T in store.tq.fields["loss_mask"].unbind()] == counted


@pytest.mark.parametrize("mode", [NONE, DECOUPLED, MIXTURE])
def test_a_batch_whose_every_token_is_withheld_has_the_loss_0_and_is_counted(loss, mode: str) -> None:
    metrics: dict[str, Any] = {}
    assert loss(mode, metrics=metrics, oldest_version=1) == 0
    assert metrics == {"async_dapo/importance/not_finite_tokens": 0.0}


def test_with_bypass_too_a_batch_whose_every_token_is_withheld_has_the_loss_0(loss) -> None:
    assert loss(BYPASS, oldest_version=1) == 0


@pytest.mark.parametrize("left", [0, 1])
def test_a_batch_of_which_verl_rejects_all_tokens_but_one_is_left_out_of_estimators_that_whiten(
    loss, left: int
) -> None:
    """They ask for two tokens, and end the run otherwise."""
    band = (f"{CORRECTION}rollout_rs=token_k1", f"{CORRECTION}rollout_rs_threshold=0.5_2.0")
    log_probs = per_token(lambda i, t: BEHAVIOUR + 5.0 * ((i, t) >= (0, left)))
    whitens = ("algorithm.adv_estimator=reinforce_plus_plus", *band)
    assert loss(DECOUPLED, *whitens, old_log_probs=nested(log_probs)) == 0
    assert not store.tq.fields["response_mask"].values().any()


@pytest.mark.parametrize(
    ("stale", "counted"),
    [([2, 5, 0, 2], [1, 0, 4, 0]), ([3, 5, 1, 2], [1, 1, 3, 0])],
    ids=["a trajectory whole", "an update whole"],
)
@pytest.mark.parametrize("mode", [NONE, DECOUPLED, MIXTURE, BYPASS])
def test_withheld_tokens_leave_the_number_that_the_loss_is_divided_by_unless_their_update_has_no_other(
    loss, mode: str, stale: list[int], counted: list[int]
) -> None:
    cut = ("rollout.n=2", "actor.ppo_mini_batch_size=1", "actor.ppo_micro_batch_size_per_gpu=2")
    lengths = zip(stale, RESPONSE_LENS, strict=True)
    versions = nested([(torch.arange(length) >= old).to(torch.int32) for old, length in lengths])
    overrides = [f"actor_rollout_ref.{each}" for each in cut]
    loss(mode, *overrides, oldest_version=1, policy_versions=versions)
    assert [int(mask_T.sum()) for mask_T in store.tq.fields["loss_mask"].unbind()] == counted


def test_a_mixture_of_log_probs_that_are_no_numbers_ends_the_run(loss) -> None:
    """It is no batch with fewer than two tokens, whose steps are left out."""
    from recipe.async_dapo.extensions.mixture.balance_heuristic import mixture_token_log_probs

    def of_nan(*_: Any, **__: Any) -> torch.Tensor:
        return mixture_token_log_probs(torch.full((1, 1, 1), math.nan), torch.ones(1), torch.ones(1, 1))

    with pytest.raises(ValueError, match="NaN or positive"):
        loss(MIXTURE, sampled_by=of_nan)


def test_a_ratio_that_is_not_finite_is_counted_and_the_run_goes_on(loss) -> None:
    log_probs = per_token(lambda i, t: math.nan if (i, t) == (1, 2) else BEHAVIOUR)
    metrics: dict[str, Any] = {}
    loss(DECOUPLED, metrics=metrics, old_log_probs=nested(log_probs))
    assert metrics["async_dapo/importance/not_finite_tokens"] == 1.0
    assert metrics["async_dapo/importance/overall/ratio_max"] == 1.0
