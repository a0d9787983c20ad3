"""What rows weigh, by verl's own loss on a model: trajectories of several rows have the gradient of those of one."""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_from_nested

from recipe.async_dapo import store
from recipe.async_dapo.extensions.mini_batches import row_weights
from recipe.async_dapo_lab.quickstart.tiny_model import build_model, build_tokenizer

from ....support.composed_runs import CPU_WORKER, compose_run, valid_overrides, write_files
from ....support.queued_rows import QueuedRows
from ....support.ranks import nested

ACTOR, PROMPT_TOK = "actor_rollout_ref.actor.", 3
ALL_PARTS = (f"{ACTOR}entropy_coeff=0.3", f"{ACTOR}use_kl_loss=True", f"{ACTOR}kl_loss_coef=0.5")
MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]
ROWS_COUNT = {mode: mode.startswith("seq-mean") for mode in MODES}
# Loss modes whose tokens depend on others: ratios of a whole row, and tokens that stand out in a micro-batch.
NOT_BY_TOKEN = {"gspo", "kl_cov", "clip_cov"}
REFUSED = {"bypass_mode", "geo_mean"}  # the second adds up means of micro-batches


class Span(NamedTuple):
    """Tokens of a trajectory: its turns, and between them what tools have said."""

    length: int
    is_sampled: bool


TRAJECTORIES = {"a": [Span(4, True)], "b": [Span(2, True), Span(3, False), Span(7, True)], "c": [Span(3, True)] * 3}


def rows_of(*, split: bool) -> Iterable[tuple[str, list[int], list[int]]]:
    """(key, response, mask): a row for each trajectory, or one for each turn, behind all before it as its context."""
    for number, (name, spans) in enumerate(TRAJECTORIES.items()):
        total = sum(span.length for span in spans)
        ids = [(7 * number + 3 * place) % 60 + 4 for place in range(total)]
        if not split:
            yield f"uid_{name}_0", ids, [int(span.is_sampled) for span in spans for _ in range(span.length)]
            continue
        end = 0
        for turn, span in enumerate(spans):
            end += span.length
            if span.is_sampled:
                yield f"uid_{name}_{turn}", ids[:end], [0] * (end - span.length) + [1] * span.length


class Step(NamedTuple):
    batch: KVBatchMeta
    queue: QueuedRows


def step_of(*, split: bool, is_first_update: bool = False) -> Step:
    """Split, it has a row of padding. In the first update the model has not moved: its log-probs are the old ones."""
    model = build_model(build_tokenizer(), seed=0) if is_first_update else None
    rows, tags = {}, []
    for key, ids, mask in [*rows_of(split=split), *([("pad_0_0", [5], [0])] if split else [])]:
        places = torch.arange(len(ids), dtype=torch.float32)
        advantage = {"a": 0.7, "b": -1.3, "c": 0.4}.get(key.split("_")[1], 0.0)
        rows[key] = {
            "prompts": torch.arange(PROMPT_TOK) + 10,
            "responses": torch.tensor(ids),
            "input_ids": torch.tensor([*range(10, 10 + PROMPT_TOK), *ids]),
            "response_mask": torch.tensor(mask),
            "loss_mask": torch.tensor(mask),
            "old_log_probs": -4.1 + 0.05 * (places % 4),
            "ref_log_prob": -4.0 - 0.1 * (places % 3),
            "advantages": torch.full_like(places, advantage),
        }
        if model is not None:
            inputs = nested([rows[key]["input_ids"]])
            log_probs = output_of(model, TensorDict({"input_ids": inputs}, batch_size=[1]))["log_probs"]
            rows[key]["old_log_probs"] = log_probs.values().detach()[PROMPT_TOK - 1 : -1]
        tags.append({"is_padding": key.startswith("pad")})
    return Step(KVBatchMeta(partition_id="train", keys=[*rows], tags=tags, fields=["responses"]), QueuedRows(rows))


def output_of(model: Any, data: TensorDict) -> dict[str, Tensor]:
    """As verl's engines give it: at each token the log-prob of the next one."""
    log_probs, entropies = [], []
    for ids_T in data["input_ids"].unbind():
        log_probs_TV = model(ids_T[None]).logits[0].log_softmax(-1)
        next_T = ids_T.roll(-1)
        log_probs.append(log_probs_TV.gather(-1, next_T[:, None])[:, 0])
        entropies.append(-(log_probs_TV.exp() * log_probs_TV).sum(-1))
    return {"log_probs": nested(log_probs), "entropy": nested(entropies)}


def gradient(config: DictConfig, step: Step, loss: Any) -> Tensor:
    """Of an update of these rows, a micro-batch for each two of them."""
    model, (batch, queue) = build_model(build_tokenizer(), seed=0), step
    fields = [*dict.fromkeys(name for row in queue.rows.values() for name in row)]
    count, tokens = len(batch), sum(int(row["loss_mask"].sum()) for row in queue.rows.values())
    for first in range(0, count, 2):
        keys = batch.keys[first : first + 2]
        data = TensorDict(
            {name: nested([queue.rows[key][name] for key in keys]) for name in fields}, batch_size=[len(keys)]
        )
        tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=tokens, global_batch_size=count)
        value, _ = loss(model_output=output_of(model, data), data=data, dp_group=None)
        value.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / one.norm())


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> DictConfig:
    folder = tmp_path_factory.mktemp("rows")
    write_files(folder)
    return compose_run(
        [
            *valid_overrides(folder),
            *CPU_WORKER,
            *ALL_PARTS,
            f"{ACTOR}loss_scale_factor=50",
            f"{ACTOR}policy_loss.dro_beta=0.1",
        ]
    )


def with_loss(config: DictConfig, *, mode: str, loss: str) -> DictConfig:
    config = config.copy()
    config.actor_rollout_ref.actor.loss_agg_mode = mode
    config.actor_rollout_ref.actor.policy_loss.loss_mode = loss
    return config


def gradients(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch, *, is_first_update: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Of trajectories in one row each; in several, by verl's loss; and as they are weighted."""
    one, several = (step_of(split=split, is_first_update=is_first_update) for split in (False, True))
    verls = partial(ppo_loss, omega_conf_to_dataclass(config.actor_rollout_ref.actor))
    expected, plain = gradient(config, one, verls), gradient(config, several, verls)
    for step in (one, several):
        monkeypatch.setattr(store, "tq", step.queue)
        row_weights.weigh_rows(step.batch, config)
    assert row_weights.FIELD not in one.queue.rows["uid_a_0"], "a step of one row a trajectory is verl's own"
    is_weighted = row_weights.FIELD in several.queue.rows["uid_a_0"]
    assert is_weighted == row_weights.counts_rows(config) == (row_weights.FIELD in several.batch.fields)
    loss = row_weights.weighted(verls) if is_weighted else verls
    return expected, plain, gradient(config, several, loss)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_given_trajectories_of_several_rows_then_their_gradient_is_that_of_one_row_with_entropy_and_kl(
    mode: str, config: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, plain, weighted = gradients(with_loss(config, mode=mode, loss="vanilla"), monkeypatch)
    assert difference(expected, weighted) < 1e-5
    assert (difference(expected, plain) > 0.1) == ROWS_COUNT[mode], "which of verl's modes count rows"


@pytest.mark.slow
@pytest.mark.parametrize("loss", sorted(POLICY_LOSS_REGISTRY.keys() - REFUSED - NOT_BY_TOKEN))
def test_given_any_loss_of_tokens_then_means_of_sequences_are_those_of_trajectories(
    loss: str, config: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, plain, weighted = gradients(with_loss(config, mode="seq-mean-token-mean", loss=loss), monkeypatch)
    assert difference(expected, weighted) < 1e-5 < difference(expected, plain)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["gspo", "kl_cov"])
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_given_ratios_of_rows_or_tokens_that_stand_out_then_before_the_model_moves_rows_weigh_as_one(
    mode: str, loss: str, config: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, plain, weighted = gradients(with_loss(config, mode=mode, loss=loss), monkeypatch, is_first_update=True)
    assert difference(expected, weighted) < 1e-5
    assert (difference(expected, plain) > 0.1) == ROWS_COUNT[mode]


def test_given_sapo_then_its_rows_are_weighted_in_every_mode(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_loss(config, mode="token-mean", loss="sapo")
    config.actor_rollout_ref.actor.use_kl_loss, config.actor_rollout_ref.actor.entropy_coeff = False, 0
    expected, _, weighted = gradients(config, monkeypatch)
    assert difference(expected, weighted) < 1e-5


def test_given_rows_of_which_no_token_is_left_then_they_weigh_nothing_and_divide_by_nothing(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_of(split=True)
    for key, row in step.queue.rows.items():
        if key.startswith("uid_b"):
            row["response_mask"] = torch.zeros_like(row["response_mask"])
    monkeypatch.setattr(store, "tq", step.queue)
    row_weights.weigh_rows(step.batch, with_loss(config, mode="seq-mean-token-mean", loss="vanilla"))
    weights = {key: float(row[row_weights.FIELD]) for key, row in step.queue.rows.items()}
    rows = len(step.batch)
    assert weights["uid_b_0"] == weights["uid_b_2"] == 0.0
    assert weights["uid_a_0"] == pytest.approx(rows / 3)
    assert [weights[f"uid_c_{turn}"] for turn in range(3)] == pytest.approx([rows / 9] * 3)


def test_what_the_loss_takes_a_row_s_weights_to_is_what_the_response_is_read_from() -> None:
    output = nested([torch.randn(4, requires_grad=True), torch.randn(6, requires_grad=True)])
    found = row_weights._with_weights(output, torch.tensor([2.0, 3.0]))
    assert torch.equal(found.values(), output.values())
    mask = nested([torch.ones(2), torch.ones(3)])
    assert [len(row) for row in response_from_nested(found, mask).unbind()] == [2, 3]
