"""Rows of `runs.csv`: what the planner says of a published step, with engines fitted to another one of the same job."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo_lab.plan.candidates import Candidate, baseline
from recipe.async_dapo_lab.plan.fit import fit_engines
from recipe.async_dapo_lab.plan.inputs import Inputs
from recipe.async_dapo_lab.plan.measures import StepMeasure
from recipe.async_dapo_lab.plan.record import record_of_means
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.sweep import simulate
from recipe.async_dapo_lab.plan.systems import System

from .real_stack import COLOCATE, TAILS, recorded, source_of
from .settings import JOBS, PARTIAL, RATIOS, VERLS_JOB, Job, Ratio

FITTED, RATIO = "step [s]", "speed-up"


def run(path: Path) -> None:
    """Simulate what the file does not have yet."""
    file = RunsFile(path)
    for job in JOBS:
        for base, base_s in job.steps[:2]:
            others = _others(job, base)
            if not all(file.has(source=job.source, fitted_to=base.name, system=one.name) for one, _ in others):
                for row in _planned(job, base, base_s, others):
                    cell = {key: row[key] for key in ("source", "fitted_to", "system")}
                    file.measure(cell, partial(dict, row))
    for tail in TAILS:
        cell = {"source": source_of(tail), "fitted_to": COLOCATE.name, "system": PARTIAL.name}
        file.measure(cell, partial(_of_real_stack, tail))
    for ratio in RATIOS:
        cell = {"source": ratio.source, "fitted_to": "", "system": ratio.fast.name}
        file.measure(cell, partial(_of, ratio))


def _others(job: Job, base: System) -> list[tuple[System, float | None]]:
    """What is planned with engines fitted to one system; of a table of many, all from the fast one."""
    (first, _), (fast, _), *_ = job.steps
    others: list[tuple[System, float | None]] = [
        (system, published_s)
        for system, published_s in job.steps
        if system is not base and (base is fast or system is fast or system is first)
    ]
    return [*others, (PARTIAL, None)] if job.source == VERLS_JOB else others


def _planned(
    job: Job, base: System, base_s: float, others: Sequence[tuple[System, float | None]]
) -> Iterator[dict[str, Any]]:
    """Each other system's step, with engines that give the base's."""
    inputs = Inputs.load(dict(job.inputs))
    factor, _, step_s = fit_engines(inputs, record_of_means(job.source, step=base_s), lambda _: _candidate(base))
    scenario = replace(inputs, engine_factor=factor).scenario()
    for system, published_s in others:
        yield {
            "source": job.source,
            "fitted_to": base.name,
            "system": system.name,
            "what": FITTED,
            "engine_factor": round(factor, 3),
            "base_s": round(base_s, 2),
            "base_planned_s": round(step_s, 2),
            "published": "" if published_s is None else round(published_s, 2),
            "planned": round(_mean(scenario, system).step_s, 2),
        }


def _of_real_stack(tail: int) -> dict[str, Any]:
    record, inputs, measured_s = recorded(tail)
    factor, _, step_s = fit_engines(inputs, record, lambda _: _candidate(COLOCATE))
    scenario = replace(inputs, engine_factor=factor).scenario()
    return {
        "what": FITTED,
        "engine_factor": round(factor, 3),
        "base_s": round(record.step_s, 3),
        "base_planned_s": round(step_s, 3),
        "published": round(measured_s, 3),
        "planned": round(_mean(scenario, PARTIAL).step_s, 3),
    }


def _of(ratio: Ratio) -> dict[str, Any]:
    scenario = Inputs.load(dict(ratio.inputs)).scenario()
    planned = ratio.of(_mean(scenario, ratio.slow), _mean(scenario, ratio.fast))
    return {"what": RATIO, "engine_factor": 1.0, "published": round(ratio.published, 3), "planned": round(planned, 4)}


def _mean(scenario: Scenario, system: System) -> StepMeasure:
    return simulate(scenario, _candidate(system), steps=None, warmup=None)[0]


def _candidate(system: System) -> Candidate:
    options = {"rollout_strategy": "partial", "stop_rule": "first_completed"}
    full = {f"async_dapo.{key}": value for key, value in options.items()} | dict(system.overrides)
    return baseline(System(name=system.name, overrides=full, habits=system.habits))
