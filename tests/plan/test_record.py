"""A plan that starts from a run's metrics: what is taken from them, what is fitted, and what is said of both."""

import contextlib
import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from math import exp
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from recipe.async_dapo.config.values import ConfigError, RolloutStrategy
from recipe.async_dapo_lab.plan import fit as fitting
from recipe.async_dapo_lab.plan.__main__ import main
from recipe.async_dapo_lab.plan.candidates import recipe_candidates
from recipe.async_dapo_lab.plan.fit import fit, promise
from recipe.async_dapo_lab.plan.inputs import Inputs
from recipe.async_dapo_lab.plan.record import FILTERED, STALEST, SURPLUS, Record, read_record
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.simulated_training import TrainingRun
from recipe.async_dapo_lab.plan.sweep import simulate, sweep
from recipe.async_dapo_lab.plan.systems import verl_colocate_async

JOB: dict[str, Any] = {
    "train_batch_size": 16,
    "rollout_n": 4,
    "max_response_length": 2048,
    "servers": 2,
    "updates": 2,
    "steps": 12,
    "warmup": 4,
}
TRUE = {"length_median_tok": 400, "length_sigma": 0.9, "valid_share": 1.0, "engine_factor": 1.7, "prompt_len_tok": 100}
TRAIN_S, LOG_PROB_S, UPDATE_S = 8.0, 2.0, 3.0
FEW_STEPS = {"steps": 4, "warmup": 1}  # where nothing is asked of the seconds


@pytest.fixture(scope="module", autouse=True)
def each_scenario_once() -> Iterator[None]:
    """Fits of the same record simulate the same scenarios, and their seed decides every number."""
    known: list[tuple[Any, Any]] = []  # what was asked, and the answer

    def simulated(*what: Any, **how: Any) -> Any:
        answers = [answer for asked, answer in known if asked == (what, how)]
        if not answers:
            answers = [simulate(*what, **how)]
            known.append(((what, how), *answers))
        return answers[0]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fitting, "simulate", simulated)
        yield


@pytest.fixture(scope="module")
def metrics() -> list[dict[str, float]]:
    """Of a job on engines that are slower than the planner's, in verl's colocate_async, as verl logs them."""
    inputs = Inputs.load(JOB | TRUE | {"training_s": TRAIN_S, "log_prob_s": LOG_PROB_S, "update_s": UPDATE_S})
    run = TrainingRun(inputs.scenario(), verl_colocate_async(groups=inputs.train_batch_size))
    steps = []
    for number in range(1, 25):
        step = run.step()
        mean_tok = step.trained_tok / step.trained_trajectories
        tokens = step.trained_tok + step.trained_trajectories * inputs.prompt_len_tok
        steps.append(
            {
                "training/global_step": number,
                "timing_s/step": step.step_s,
                "timing_s/gen": step.rollout_s,
                "timing_s/update_actor": step.train_s,
                "timing_s/old_log_prob": step.log_prob_s,
                "response_length/mean": mean_tok,
                "response_length/max": 2048.0,
                "response_length/clip_ratio": 0.035,
                "prompt_length/mean": float(inputs.prompt_len_tok),
                "perf/total_num_tokens": float(tokens),
                "perf/throughput": tokens / step.step_s / 2,
                STALEST: float(step.staleness_max),
            }
        )
    return steps


def logged(path: Path, steps: list[dict[str, float]]) -> str:
    path.write_text("".join(json.dumps({"step": i, "data": step}) + "\n" for i, step in enumerate(steps, 1)))
    return str(path)


@pytest.fixture
def record(metrics, tmp_path) -> Record:
    return read_record(logged(tmp_path / "metrics.jsonl", metrics))


@pytest.mark.slow
def test_given_a_record_then_the_engines_are_fitted_so_that_its_step_comes_out(record):
    fitted = fit(record, JOB | {"length_correlation": 0.5}, None)
    assert fitted.mode == "verl colocate_async"
    assert fitted.planned_rollout_s == pytest.approx(record.rollout_s, rel=0.011)
    assert fitted.planned_step_s == pytest.approx(record.step_s, rel=0.02)
    assert fitted.inputs.engine_factor == pytest.approx(TRUE["engine_factor"], rel=0.15)
    taken = {"training_s": TRAIN_S, "log_prob_s": LOG_PROB_S, "valid_share": 1.0, "prompt_len_tok": 100}
    assert {name: fitted.taken[name] for name in taken} == pytest.approx(taken)
    assert fitted.taken["update_s"] == pytest.approx(UPDATE_S, abs=0.1)  # and the stop of the engines
    assert not fitted.doubts and "valid_share" not in fitted.assumed and "max_num_seqs" in fitted.assumed


@pytest.mark.slow
def test_what_the_user_says_wins_over_the_record(record):
    given = JOB | FEW_STEPS | {"valid_share": 0.5, "length_median_tok": 300.0, "length_sigma": 0.5}
    fitted = fit(record, given, "sync")
    assert f"times the seconds of engine={fitted.inputs.engine}" in str(fitted)
    assert fitted.mode == "verl sync" and not fitted.taken.keys() & given.keys()
    assert (fitted.inputs.valid_share, fitted.inputs.length_median_tok) == (0.5, 300.0)


@pytest.mark.slow
def test_given_half_of_the_fields_then_the_rest_is_assumed_and_named(metrics, tmp_path):
    """Only whole steps and mean lengths: the engines are fitted to the step, training is by arithmetic."""
    few = [{key: step[key] for key in ("timing_s/step", "response_length/mean")} for step in metrics]
    fitted = fit(read_record(logged(tmp_path / "few.jsonl", few)), JOB, "colocate_async")
    assert fitted.planned_step_s == pytest.approx(fitted.record.step_s, rel=0.02)
    assert fitted.inputs.training_s is None and set(fitted.taken) == {"length_median_tok", "valid_share"}
    assert {"length_sigma", "length_correlation", "updates"} - fitted.assumed.keys() == {"updates"}


@pytest.mark.slow
def test_a_record_of_verls_sync_mode_tells_its_mode_and_counts_the_valid_groups_that_it_threw_away(metrics, tmp_path):
    """verl logs no count of a step that filters nothing, and staleness of 0."""
    filtering = {FILTERED: 4.0, SURPLUS: 12.0}
    steps = [step | {STALEST: 0.0} | (filtering if index % 2 else {}) for index, step in enumerate(metrics)]
    fitted = fit(read_record(logged(tmp_path / "sync.jsonl", steps)), JOB | FEW_STEPS, None)
    assert fitted.mode == "verl sync"
    share = 11 / 21  # of the steps that count
    valid = 16 + share * 12
    assert fitted.taken["valid_share"] == pytest.approx(valid / (valid + share * 4))


@pytest.mark.slow
def test_a_spread_that_the_user_says_keeps_the_recorded_mean(record):
    sigma = 0.5
    taken = fit(record, JOB | {"length_sigma": sigma}, None).taken
    mean_tok = fmean(step["response_length/mean"] for step in record.steps)
    assert taken["length_median_tok"] * exp(sigma**2 / 2) == pytest.approx(mean_tok)


def test_the_csv_of_several_runs_is_refused(tmp_path):
    path = tmp_path / "page.csv"
    path.write_text("Step,one - timing_s/step,two - timing_s/step\n1,3.0,4.0\n")
    with pytest.raises(ConfigError, match="timing_s/step of several runs"):
        read_record(str(path))


@pytest.mark.parametrize("form", ["wandb_history", "wandb_page", "tensorboard"])
def test_every_form_of_a_record_reads_the_same(record, metrics, tmp_path, form):
    match form:
        case "wandb_history":
            path = tmp_path / "history.jsonl"
            path.write_text("".join(json.dumps(step | {"_runtime": 3, "note": "text"}) + "\n" for step in metrics))
        case "wandb_page":
            path = tmp_path / "page.csv"
            with path.open("w", newline="") as file:
                names = [name for key in metrics[0] for name in (f"run-1 - {key}", f"run-1 - {key}__MAX")]
                writer = csv.DictWriter(file, ["Step", *names])
                writer.writeheader()
                writer.writerows({f"run-1 - {key}": value for key, value in step.items()} for step in metrics)
        case "tensorboard":
            path = tmp_path / "events"
            writer = EventFileWriter(str(path))
            for number, step in enumerate(metrics):
                values = [Summary.Value(tag=key, simple_value=value) for key, value in step.items()]
                writer.add_event(Event(step=number, summary=Summary(value=values)))
            writer.close()
    read = read_record(str(path))
    names = ("step_s", "rollout_s", "train_s", "log_prob_s", "trajectories", "prompt_len_tok", "gpus")
    assert [getattr(read, name) for name in names] == pytest.approx([getattr(record, name) for name in names], rel=1e-5)
    assert read.mode == record.mode and len(read.steps) == len(record.steps)


@pytest.mark.slow
def test_what_no_run_can_have_logged_is_said(metrics, tmp_path):
    changed = [step | {"perf/total_num_tokens": 40_000.0, "perf/throughput": 10.0} for step in metrics]
    changed[5]["timing_s/update_actor"] = 2 * changed[5]["timing_s/step"]
    doubts = " ".join(fit(read_record(logged(tmp_path / "odd.jsonl", changed)), JOB, None).doubts)
    for said in (
        "in 1 of 21 steps",
        "the same in every step",
        "where each step trains on as many",
        "GPUs, the plan has 2",
    ):
        assert said in doubts


@pytest.mark.parametrize(
    ("change", "given", "mode", "words"),
    [
        ({}, {"train_batch_size": 64}, None, "give those of the recorded job"),
        ({STALEST: None}, {}, None, "does not tell its mode; give one of sync"),
        ({}, {"length_correlation": "half"}, None, "length_correlation=half: must be a number"),
        ({"response_length/clip_ratio": 1.0}, {}, None, "100 % of the responses are cut"),
        ({}, {"engine_factor": "2"}, None, "engine_factor=2: is what a record fits; leave one of the two out"),
        ({}, {}, "async", "recorded_mode=async: must be one of sync"),
        ({"timing_s/step": 0.0}, {}, None, "give a record of 4 or more"),
        ({"timing_s/gen": 1e6, "timing_s/step": 2e6}, {}, None, "no speed of the engines explains"),
    ],
)
def test_a_record_that_cannot_be_planned_from_says_what_to_give(metrics, tmp_path, change, given, mode, words):
    steps = [{key: value for key, value in (step | change).items() if value is not None} for step in metrics]
    with pytest.raises(ConfigError, match=words):
        fit(read_record(logged(tmp_path / "bad.jsonl", steps)), JOB | given, mode)


def test_each_speed_of_engines_that_is_simulated_is_judged(record, monkeypatch):
    simulated: list[Scenario] = []

    def counted(scenario: Scenario, *arguments: Any, **options: Any) -> Any:
        simulated.append(scenario)
        return simulate(scenario, *arguments, **options)

    monkeypatch.setattr(fitting, "simulate", counted)
    monkeypatch.setattr(fitting, "MOST_TRIES", 1)
    with pytest.raises(ConfigError, match="no speed of the engines explains"):
        fit(record, JOB, None)
    assert len(simulated) == 1


@pytest.mark.slow
def test_the_command_promises_a_ratio_with_its_range(metrics, tmp_path):
    path, printed = tmp_path / "plan.json", io.StringIO()
    job = [word for key, value in JOB.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    record = ["--record", logged(tmp_path / "metrics.jsonl", metrics), "--strategies", "partial"]
    with contextlib.redirect_stdout(printed):
        assert main([*job, *record, "--jobs", "1", "--json", str(path)]) == 0
    document, said = json.loads(path.read_text()), printed.getvalue()
    assert document["planned_step_s"] == pytest.approx(document["recorded_step_s"], rel=0.02)
    assert len(document["ratio_of_halves"]) == 2 and 0.3 < document["ratio"] < 1.1
    assert f"takes {document['ratio']:.2f} of the recorded step" in said and "assumed: length_correlation=0.5" in said
    again = Inputs.load(document["inputs"])
    assert again.engine_factor != 1.0 and replace(again, engine_factor=1.0) != again


def test_given_strategies_without_the_default_then_a_record_is_refused_before_it_is_fitted(metrics, tmp_path, capsys):
    record = logged(tmp_path / "metrics.jsonl", metrics)
    assert main(["--record", record, "--strategies", "discard"]) == 2
    assert "strategies=discard: with --record they must include partial" in capsys.readouterr().err


@pytest.mark.slow
def test_a_half_that_cannot_be_fitted_loses_its_part_of_the_range_alone(record):
    fitted = fit(record, JOB, None)
    slow = {**record.steps[0], "timing_s/gen": 1e6, "timing_s/step": 2e6}
    torn = replace(fitted, record=replace(record, steps=[*record.steps[:10], *[slow] * 10]))
    candidates = recipe_candidates(fitted.scenario, strategies=[RolloutStrategy.PARTIAL])
    default = next(one for one in candidates if one.is_default)
    [row] = sweep(fitted.scenario, [default], steps=4, warmup=2)
    promised = promise(torn, JOB, [row])
    assert len(promised.of_halves) == 1 and "1 of them cannot be fitted alone" in str(promised)
