"""The laboratory of `benchmarks.learning`: its model samples what it says, under the versions that the scheduler says,
and learns by verl's own loss.
"""

import copy
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pandas as pd
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn import functional as F
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

from benchmarks.learning import rows as learning_rows
from benchmarks.learning import run as learning_run
from benchmarks.learning import training as learning_training
from benchmarks.learning.model import _DROP_EVERY, Continuation, Sampling, TinyTransformer, padded, sample
from benchmarks.learning.rows import CORRECTIONS, DEFAULT, ON_POLICY, Row
from benchmarks.learning.schedule import Sampled, SampledRun
from benchmarks.learning.tasks import TASKS, Exercise, Task
from benchmarks.learning.training import Learner, compose_run
from benchmarks.support.runs_file import claim
from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo_lab.plan.measures import StepMeasure

from ..support import composed_runs

STEPS, BOUND = 6, 2

pytestmark = pytest.mark.slow


def _draw(rng: random.Random) -> Exercise:
    prompt = "".join(rng.choice("abcd") for _ in range(6))
    return Exercise(prompt=prompt, teach=lambda _: "ab", is_right=lambda answer: len(answer) % 2 == 0)


EVEN = Task(name="even", draw=_draw, limit_tok=24, learning_rate=3e-3, steps=2, warm_updates=2)


@pytest.fixture(autouse=True)
def the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of an even length are right: half of those that an untrained model ends in time."""
    monkeypatch.setitem(TASKS, EVEN.name, EVEN)
    monkeypatch.setattr(learning_training, "compose_overrides", composed_runs.compose_run)  # the same, only faster
    monkeypatch.setattr(learning_rows, "GROUPS", 4)


def row_of(strategy: str, staleness: str, correction: str = "none") -> Row:
    return Row(
        task=EVEN.name,
        strategy=strategy,
        staleness=staleness,
        correction=correction,
        rate_factor=1.0,
        updates=1,
        steps=EVEN.steps,
        seed=1,
    )


def steps_of(row: Row) -> Iterator[tuple[int, list[Sampled], dict[str, float], dict[int, TinyTransformer]]]:
    """Step, what it trains on, its measures, and the models of all versions up to its own."""
    model = TinyTransformer(0)
    learner = Learner(model, compose_run(row.overrides))
    run = SampledRun(row, model)
    versions = {}
    for step in range(1, STEPS + 1):
        versions[step - 1] = copy.deepcopy(model)
        run.step()
        yield step, run.trained, learner.update(run.trained, step=step), versions


@cache
def stale_batch() -> tuple[int, list[Sampled], TinyTransformer]:
    """A step, what it trains on, and the model before it."""
    *_, (step, trained, _, versions) = steps_of(row_of("partial", str(BOUND)))
    return step, trained, versions[step - 1]


@torch.no_grad()
def log_probs(model: TinyTransformer, one: Sampled) -> Tensor:
    """Of its tokens, by one pass over the whole of it."""
    tokens = torch.tensor([one.prompt + one.tokens])
    whole = model(tokens[:, :-1])[0].log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
    return whole[len(one.prompt) - 1 :]


def decided_model() -> TinyTransformer:
    """Untrained, with choices that are far from even: some 0.2 to 3 nats of entropy."""
    model = TinyTransformer(0)
    with torch.no_grad():
        model.head.weight *= 5
    return model


def test_tokens_are_drawn_from_the_model_s_distribution() -> None:
    """The first by how often each comes; all, also those beside rows that have ended, by their mean log-prob, which is
    minus the entropy of the choice.
    """
    model, count = decided_model(), 4000
    context, most_tok = [5, 6, 7], [1 + row % 20 for row in range(count)]
    drawn = sample(model, [context] * count, most_tok, torch.Generator().manual_seed(0))
    expected = model(torch.tensor([context]))[0, -1].softmax(-1).detach()
    seen = torch.bincount(torch.tensor([one.tokens[0] for one in drawn]), minlength=len(expected)) / count
    chi2 = float(((seen - expected) ** 2 / expected).sum() * count)
    assert chi2 < 2 * len(expected)  # its mean is one less than that many, its deviation a fifth of it
    whole = padded([context + one.tokens for one in drawn])
    log_prob_BTV = model(whole)[:, len(context) - 1 : -1].log_softmax(-1).detach()
    mask_BT = padded([[1] * len(one.tokens) for one in drawn]).bool()
    log_prob_BT = log_prob_BTV.gather(2, whole[:, len(context) :, None])[..., 0]
    entropy_BT = -(log_prob_BTV.exp() * log_prob_BTV).sum(-1)
    variance_BT = (log_prob_BTV.exp() * log_prob_BTV**2).sum(-1) - entropy_BT**2
    for places in (slice(0, None), slice(1, None), slice(_DROP_EVERY, None)):
        surplus, variance = (
            (one[:, places] * mask_BT[:, places]).sum() for one in (log_prob_BT + entropy_BT, variance_BT)
        )
        assert abs(float(surplus)) < 4 * float(variance) ** 0.5


def test_a_row_of_any_length_goes_on_as_if_it_were_alone() -> None:
    model, rng = decided_model(), random.Random(0)
    contexts = [[rng.randrange(1, 40) for _ in range(rng.randrange(3, 30))] for _ in range(50)]
    most_tok = [rng.randrange(1, 40) for _ in contexts]
    for context, most, one in zip(
        contexts, most_tok, sample(model, contexts, most_tok, torch.Generator().manual_seed(1)), strict=True
    ):
        assert 0 < len(one.tokens) <= most
        assert len(one.tokens) == most or one.tokens[-1] == 0
        assert 0 not in one.tokens[:-1]
        whole = log_probs(model, Sampled(group="", prompt=context, versions=[], reward=0.0, **_fields(one)))
        torch.testing.assert_close(torch.tensor(one.log_probs), whole, atol=1e-4, rtol=0)


def _fields(one: object) -> dict[str, list]:
    return {name: getattr(one, name) for name in ("tokens", "log_probs")}


@pytest.mark.parametrize("strategy", ["partial", "consistent", "separate"])
def test_each_token_has_the_log_prob_of_the_version_that_sampled_it(strategy: str) -> None:
    resumed = 0
    for step, trained, measures, versions in steps_of(row_of(strategy, str(BOUND))):
        assert len(trained) == 4 * 8
        assert measures["staleness_max"] <= BOUND
        assert strategy != "separate" or step == 1 or measures["off_policy"] == 1
        for one in trained:
            assert len(one.tokens) == len(one.log_probs) == len(one.versions)
            assert one.versions == sorted(one.versions)
            assert max(one.versions) <= step - 1
            resumed += len(set(one.versions)) > 1
            for version in set(one.versions):
                own = [place for place, sampled_by in enumerate(one.versions) if sampled_by == version]
                expected = log_probs(versions[version], one)[own]
                torch.testing.assert_close(torch.tensor(one.log_probs)[own], expected, atol=1e-4, rtol=0)
    assert (resumed > 0) == (strategy != "consistent")


@torch.no_grad()
def test_kept_keys_and_values_stay_those_of_the_version_that_computed_them() -> None:
    """A token's are computed when the next one is sampled: those of a resumed row's last token under newer weights."""
    older, newer = decided_model(), TinyTransformer(1)
    prompts, lengths = [[1, 2, 3], [4, 5, 6], [7, 8, 9]], [20, 3, 11]
    rows = [Continuation() for _ in prompts]
    first = Sampling(older, prompts, rows, [40] * 3, torch.Generator().manual_seed(3), keeps=True)
    first.advance(24)
    for row, length in zip(rows, lengths, strict=True):
        del row.tokens[length:], row.log_probs[length:]
    kept = [first.kept(i, 3 + length - 1) for i, length in enumerate(lengths)]
    Sampling(newer, prompts, rows, [5] * 3, torch.Generator().manual_seed(4), kept=kept).advance(5)
    for prompt, row, length in zip(prompts, rows, lengths, strict=True):
        caches: list[tuple[Tensor, Tensor]] = []
        context = prompt + row.tokens[:length]
        older(torch.tensor([context[:-1]]), caches)
        for at, (token, told) in enumerate(zip(row.tokens[length:], row.log_probs[length:], strict=True)):
            place = len(context) - 1 + at
            caches = [(F.pad(keys, (0, 0, 0, 1)), F.pad(values, (0, 0, 0, 1))) for keys, values in caches]
            fed = torch.tensor([(prompt + row.tokens)[place]])
            logits = newer.decode(fed, torch.tensor([place]), torch.ones(1, 1, 1, place + 1, dtype=torch.bool), caches)
            assert float(logits.log_softmax(-1)[0, token]) == pytest.approx(told, abs=1e-4)


def test_only_resumed_trajectories_have_keys_and_values_of_older_weights() -> None:
    apart: dict[bool, list[float]] = {True: [], False: []}
    for _, trained, _, versions in steps_of(row_of("partial_stale_kv", str(BOUND))):
        for one in trained:
            newest = [place for place, version in enumerate(one.versions) if version == one.versions[-1]]
            anew = log_probs(versions[one.versions[-1]], one)[newest]
            difference = (torch.tensor(one.log_probs)[newest] - anew).abs().max()
            apart[len(set(one.versions)) > 1].append(float(difference))
    assert max(apart[False]) < 1e-4 < 1e-3 < max(apart[True])


@pytest.mark.parametrize("staleness", [DEFAULT, "2", "4"])
def test_no_token_in_the_loss_is_older_than_the_bound(staleness: str) -> None:
    bound = 4 if staleness == DEFAULT else int(staleness)
    ages = [measures["staleness_max"] for _, _, measures, _ in steps_of(row_of("partial", staleness))]
    assert 0 < max(ages) <= bound


def test_on_policy_tokens_are_no_nat_away() -> None:
    for _, trained, measures, _ in steps_of(row_of(ON_POLICY, "0")):
        assert measures["staleness_mean"] == measures["off_policy"] == 0
        assert measures["k3_kl"] == pytest.approx(0, abs=1e-10)
        groups = {one.group: {two.reward for two in trained if two.group == one.group} for one in trained}
        assert all(rewards == {0.0, 1.0} for rewards in groups.values())  # the others are filtered


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_step_s_gradient_is_that_of_verl_s_worker(correction: str) -> None:
    step, trained, sampled_by = stale_batch()
    config, model = compose_run(row_of("partial", str(BOUND), correction).overrides), copy.deepcopy(sampled_by)
    learner = Learner(model, config)
    rows, _ = learner.prepare(trained, step=step)
    learner.accumulate(rows)
    own = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    loss, _ = ppo_loss(omega_conf_to_dataclass(config.actor_rollout_ref.actor), _output(model, trained), _data(rows))
    loss.backward()
    assert max(float(gradient.abs().max()) for gradient in own) > 1e-4
    for gradient, parameter in zip(own, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, atol=1e-6, rtol=1e-4)


def test_a_group_s_mixture_is_the_mean_of_its_members_schedules() -> None:
    row, model = row_of("partial", str(BOUND), "mixture"), TinyTransformer(0)
    learner, versions, mixed = Learner(model, compose_run(row.overrides)), dict[int, TinyTransformer](), 0
    run = SampledRun(row, model)
    for step in range(1, STEPS + 1):
        versions[step - 1] = copy.deepcopy(model)
        run.step()
        rows, _ = learner.prepare(run.trained, step=step)
        for place, one in enumerate(run.trained):
            told = rows["rollout_log_probs"][place, : len(one.tokens)].double().sum()
            of_version = {version: log_probs(own, one).double() for version, own in versions.items()}
            members = [two.versions for two in run.trained if two.group == one.group]
            sums = []
            for own in members:
                schedule = (own + own[-1:] * len(one.tokens))[: len(one.tokens)]
                sums.append(sum(of_version[version][t] for t, version in enumerate(schedule)))
            expected = torch.stack(sums).logsumexp(0) - torch.tensor(float(len(members))).log()
            torch.testing.assert_close(told, expected, atol=1e-3, rtol=0)
            mixed += len({tuple(own) for own in members}) > 1 and abs(float(told) - sum(one.log_probs)) > 1e-3
        learner.update(run.trained, step=step)
    assert mixed


@pytest.mark.skipif("one_pass" not in declared(), reason="extensions/one_pass is not in this copy")
@pytest.mark.parametrize("correction", ["decoupled", "none"])
def test_one_pass_has_the_loss_and_the_gradient_of_two(correction: str) -> None:
    from recipe.async_dapo.extensions.one_pass import one_update

    step, trained, sampled_by = stale_batch()
    config, model = compose_run(row_of("partial", str(BOUND), correction).overrides), copy.deepcopy(sampled_by)
    rows, _ = Learner(model, config).prepare(trained, step=step)
    two, one = _data(rows), _data(rows).exclude("old_log_probs", "rollout_is_weights")
    one.set_non_tensor(one_update.FIELD, one_update.loss_context(config, newest=step - 1))
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    loss_of = one_update.around(partial(ppo_loss, actor), actor)
    losses, gradients = [], []
    for data in (two, one):
        model.zero_grad()
        loss, _ = loss_of(_output(model, trained), data)
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert losses[0] != 0 and losses[1] == pytest.approx(losses[0], abs=1e-6)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


def test_mini_batches_are_the_same_whichever_group_has_ended_first() -> None:
    step, trained, sampled_by = stale_batch()
    groups = [[one for one in trained if one.group == name] for name in dict.fromkeys(one.group for one in trained)]
    parameters = []
    for order in (groups, groups[::-1]):
        model = copy.deepcopy(sampled_by)
        row = replace(row_of("partial", str(BOUND), "decoupled"), updates=4)
        Learner(model, compose_run(row.overrides)).update([one for group in order for one in group], step=step)
        parameters.append(list(model.parameters()))
    for first, second in zip(*parameters, strict=True):
        torch.testing.assert_close(first, second)


def _output(model: TinyTransformer, trained: list[Sampled]) -> dict[str, Tensor]:
    """Log-probs of whole sequences without padding, as an engine returns them: of the following token at each place."""
    whole = padded([one.prompt + one.tokens for one in trained])
    log_prob_BT = model(whole).log_softmax(-1)[:, :-1].gather(2, whole[:, 1:, None])[..., 0]
    own = [log_prob_T[: len(one.prompt + one.tokens) - 1] for log_prob_T, one in zip(log_prob_BT, trained, strict=True)]
    rows = [torch.cat([log_prob_T, torch.zeros(1)]) for log_prob_T in own]
    return {"log_probs": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}


def _data(rows: dict[str, Tensor]) -> TensorDict:
    lens_tok = rows["lengths"][:, 0].tolist()

    def nested(values: Tensor) -> Tensor:
        cut = [row[:length] for row, length in zip(values, lens_tok, strict=True)]
        return torch.nested.as_nested_tensor(cut, layout=torch.jagged)

    names = ("old_log_probs", "advantages", "response_mask", "responses", "rollout_is_weights", "rollout_log_probs")
    data = TensorDict({name: nested(rows[name]) for name in names if name in rows}, batch_size=len(lens_tok))
    data["policy_versions"] = nested(rows["versions"])
    data["prompts"] = torch.nested.as_nested_tensor(list(rows["prompts"]), layout=torch.jagged)
    sizes = {"dp_size": 1, "batch_num_tokens": int(rows["response_mask"].sum()), "global_batch_size": len(lens_tok)}
    for name, value in sizes.items():
        data.set_non_tensor(name, value)
    return data


def test_what_is_in_the_file_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(learning_run, "WARM", tmp_path)
    ran: list[Row] = []
    monkeypatch.setattr(
        learning_run, "warm_model", lambda task, seed, folder: ran.append(seed) or TinyTransformer(seed)
    )
    command = ["--tasks", EVEN.name, "--rows", ON_POLICY, "partial/default/none", "--output", str(tmp_path / "runs")]
    learning_run.main([*command, "--seeds", "0"])
    learning_run.main([*command, "--seeds", "0", "1"])
    runs, curves = (pd.read_csv(tmp_path / "runs" / name) for name in ("runs.csv", "curves.csv"))
    assert ran == [0, 0, 1, 1] == list(runs["seed"]) == list(curves["seed"])[::2]
    assert list(runs["staleness"]) == ["0", DEFAULT] * 2 == list(curves["staleness"])[::2]
    assert list(runs["steps_done"]) == [EVEN.steps] * 4
    assert runs["command"].str.startswith("python -m benchmarks.learning").all()
    with claim(tmp_path / "runs" / "claims" / learning_run.claim_name(replace(row_of(ON_POLICY, "0"), seed=2))):
        learning_run.main([*command[:3], ON_POLICY, *command[5:], "--seeds", "2"])  # another process is at it
    assert ran == [0, 0, 1, 1]


def test_a_run_that_breaks_down_is_judged_by_the_model_that_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BreaksDown(SampledRun):
        def step(self) -> StepMeasure:
            if self.trained:
                raise ConfigError("groups", 0, "none is valid")
            return super().step()

    monkeypatch.setattr(learning_run, "SampledRun", BreaksDown)
    monkeypatch.setattr(learning_run, "WARM", tmp_path)
    monkeypatch.setattr(learning_run, "accuracy", lambda model, task, seed: {0: 0.5, EVEN.steps: 0.1}.get(seed, 0.9))
    found = learning_run.figures(row_of("partial", "2"), curves=tmp_path / "curves.csv")
    assert (found["steps_done"], found["accuracy"]) == (1, 0.1)
