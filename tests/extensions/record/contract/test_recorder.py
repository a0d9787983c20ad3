"""The recorder among verl's loggers, and what the lab's recorders add: the lab reads what the recipe writes."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from verl.utils.import_utils import load_class_from_fqn
from verl.utils.tracking import Tracking

from recipe.async_dapo.config.options import AsyncDAPOConfig
from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.extensions.record.recorder import Recorder
from recipe.async_dapo.extensions.record.wiring import recorder, wire
from recipe.async_dapo.record import keys
from recipe.async_dapo.runtime.launch import LAUNCH_VARIABLE, note_launch
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer
from recipe.async_dapo.training.validation import ValidationAnswers
from recipe.async_dapo.weights.stream import CUSTOM_OPTIONS
from recipe.async_dapo_lab import recorder as labs
from recipe.async_dapo_lab.evaluate.figures import KEPT_FILE
from recipe.async_dapo_lab.evaluate.recorder import EvaluationRecorder
from recipe.async_dapo_lab.run_files import ANSWERS_FILE, SAMPLES_FILE, STEPS_FILE, read_lines
from recipe.async_dapo_lab.run_record import read_description, read_steps
from recipe.async_dapo_lab.sampling_meter import SamplingMeter
from recipe.async_dapo_lab.train import RECORDER

from ....support.composed_runs import compose_run
from ....support.recorded_runs import recipe_step
from ....support.simulated_options import options

RUN = {"name": "run", "system": "partial", "started_s": 0.0}


def test_the_record_has_the_metrics_of_each_step_and_says_what_was_run_without_a_secret(tmp_path, monkeypatch) -> None:
    config = compose_run([f"async_dapo.report_dir={tmp_path}/run", f"async_dapo.recorder={RECORDER}"])
    secret = "ray_kwargs.ray_init.runtime_env.env_vars.KEY=secret"
    monkeypatch.setenv(LAUNCH_VARIABLE, "")  # is restored
    note_launch(["data.seed=1", secret])
    hints: list[str] = []
    monkeypatch.setattr(labs.logger, "info", lambda text, *values: hints.append(text % values))
    trainer: Any = AsyncDAPOTrainer.__new__(AsyncDAPOTrainer)
    trainer.config, trainer.total_training_steps, trainer.train_dataset = config, 10, range(7)
    own = recorder(AsyncDAPOConfig.from_hydra(config))
    trainer.replay_buffer = SimpleNamespace(observers={"record": own})
    own.training_begins(trainer)
    trainer.logger = tracking = Tracking("project", "run", ["console"])
    for step in range(1, 11):
        tracking.log(data=recipe_step(step) | {keys.IDLE_RATIO: 0.9}, step=step)
    tracking.finish()
    [hint] = hints
    assert hint.startswith("step 10: hint: over 10 steps, async_dapo/load_balancer/idle_ratio is 0.9")
    assert [line.step for line in read_steps(tmp_path / "run" / STEPS_FILE)] == list(range(1, 11))
    assert len(read_lines(tmp_path / "run" / SAMPLES_FILE)) == 10
    noted = read_description(tmp_path / "run")
    assert noted is not None and noted.settings["prompts"] == 7
    assert {"data.train_batch_size", "rollout.n", "engines"} <= noted.settings.keys()
    assert noted.launch == {"overrides": ["data.seed=1"], "folder": str(Path.cwd())}, "and no secret"
    assert noted.versions["verl"] == "0.9.1" and "cores" in noted.machine and noted.checkpoints


def test_engines_have_the_meter_that_the_recorder_names() -> None:
    config = compose_run([])
    config.actor_rollout_ref.rollout.custom = {CUSTOM_OPTIONS: {}}
    wire(config, options(recorder=RECORDER))
    named = config.actor_rollout_ref.rollout.custom[CUSTOM_OPTIONS]["meter"]
    assert load_class_from_fqn(named) is SamplingMeter
    wire(config, options())
    assert config.actor_rollout_ref.rollout.custom[CUSTOM_OPTIONS]["meter"] is None
    assert type(recorder(options())) is Recorder


def test_a_validations_answers_to_three_prompts_are_kept_with_its_step(tmp_path: Path) -> None:
    own = recorder(options(recorder=RECORDER))
    own.write_to(tmp_path, RUN)
    prompts = ["a", "a", "bb", "ccc", "dddd"]
    answers = ValidationAnswers(
        uids=prompts, sources=["s"] * 5, prompts=prompts, texts=["1", "2", "3", "4", "5"], scores=[1.0] * 5
    )
    own.validated(answers)
    own.log({"val-core/s/acc/mean@1": 1.0}, 0)
    own.log(recipe_step(1), 1)
    kept = [(line["step"], line["prompt"], line["answer"]) for line in read_lines(tmp_path / ANSWERS_FILE)]
    assert kept == [(0, "a", "1"), (0, "bb", "3"), (0, "dddd", "5")]


def test_an_evaluation_keeps_the_source_of_prompts_whose_every_answer_failed(tmp_path: Path) -> None:
    failed, answered = (
        GroupOutcome(prompt_uid=uid, verdict=Verdict.VALID, source=source, response_lens_tok=(3,))
        for uid, source in (("lost", "code"), ("a", ""))
    )
    own = EvaluationRecorder(options())
    own.write_to(tmp_path, RUN)
    record: Any = SimpleNamespace(summary=SimpleNamespace(outcomes=[failed, answered]))
    own.validation_closed(record)
    own.validated(ValidationAnswers(uids=["a"], sources=["unknown"], prompts=[""], texts=[""], scores=[1.0]))
    own.log({"val-core/unknown/acc/mean@1": 1.0}, 0)
    kept = json.loads((tmp_path / KEPT_FILE).read_text())
    assert kept == {"sources": {"lost": "code", "a": "unknown"}, "lengths_tok": {"lost": [3], "a": [3]}}


class OfBefore(Recorder):
    def round_closed(self, step: int) -> None: ...

    def end_phase(self) -> None: ...


class OfGroups(Recorder):
    def ended(self, record: Any, groups: Any) -> None: ...

    def check(self, held: Any, ledger: Any, *, deferred: int, more: int = 0) -> None: ...


class OfTwo(Recorder):
    def __init__(self, folder: Path, options: AsyncDAPOConfig) -> None: ...


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("OfBefore", "has round_closed, which is batch_made now; end_phase, which is begin_phase(None) now: nothing "),
        ("OfGroups", "is called with ended(record): missing a required argument: 'groups'; have it take these"),
        ("OfTwo", "is made of the run's options alone: missing a required argument: 'options'; have its __init__ "),
        ("RUN", "is no subclass of Recorder of extensions/record; make it one"),
        ("Nowhere", "cannot be imported: AttributeError: "),
    ],
)
def test_a_recorder_that_would_record_nothing_is_refused_before_engines_start(name: str, told: str) -> None:
    config = compose_run([])
    config.actor_rollout_ref.rollout.custom = {CUSTOM_OPTIONS: {}}
    with pytest.raises(ConfigError) as refused:
        wire(config, options(recorder=f"{__name__}.{name}"))
    assert str(refused.value).startswith(f"async_dapo.recorder={__name__}.{name}: {told}")
