"""Records of runs that were never run, as the recipe and verl would have written them."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from recipe.async_dapo.record import keys
from recipe.async_dapo.record.call_figures import CallFigures
from recipe.async_dapo_lab.report.calls import call_line
from recipe.async_dapo_lab.report.record import LabRecord
from recipe.async_dapo_lab.report.samples import LoadSample
from recipe.async_dapo_lab.report.timeline import Span, StepTimeline
from recipe.async_dapo_lab.run_files import RUN_FILE, STEPS_FILE, write_lines
from recipe.async_dapo_lab.run_record import RunDescription, StepRecord

ACCURACY = "val-core/math/acc/mean@1"


def verl_step(step: int, *, rollout_s: float) -> dict[str, float]:
    return {
        keys.STEP_S: rollout_s + 12.0,
        keys.ROLLOUT_S: rollout_s,
        "timing_s/old_log_prob": 3.0,
        "timing_s/update_actor": 7.0,
        keys.WEIGHTS_S: 1.5,
        keys.ADVANTAGE_MAX: 1.5,
        keys.REWARD: 0.3 + 0.4 * (1 - math.exp(-step / 10)),
        "response_length/mean": 900.0 + step,
        "actor/entropy": 0.4 - step / 1000,
        "perf/total_num_tokens": 1_000_000.0,
    }


def recipe_step(step: int, *, failed: int = 0) -> dict[str, float]:
    """B = 64; 100 groups are drawn in a step, 30 are filtered."""
    kept = 100 - 64 - 30 - failed
    ledger = {"drawn": 100, "trained": 64, "filtered": 30, "failed": failed, "retired": 0, "waiting": 0}
    return {
        **verl_step(step, rollout_s=28.0 + math.sin(step)),
        **{keys.LEDGER + term: float(count * step) for term, count in ledger.items()},
        keys.LEDGER + "buffered": float(kept * step),
        **{f"{keys.SOURCE}{name}/drawn": 10.0 * share * step for name, share in (("a/math", 7), ("code", 3))},
        **{f"{keys.SOURCE}{name}/trained": 32.0 * step for name in ("a/math", "code")},
        f"{keys.SOURCE}code/pass_rate": 0.25,
        keys.TRAINED_GROUPS: 64.0,
        "async_dapo/filter/rejected_groups": 30.0,
        keys.REJECTED_RATIO: 30 / 94,
        keys.STOP_LATENCY_S: 0.2,
        keys.INTERRUPTED: 20.0,
        keys.FAILED_GROUPS: float(failed),
        keys.CALLS_FAILED_RATIO: 0.0,
        keys.IDLE_RATIO: 0.14,
        keys.ROUND_S: 28.0 + math.sin(step),
        "async_dapo/load_balancer/inflight/max": 256.0,
        keys.TOKENS_TRAINED: 900_000.0,
        keys.TOKENS_DISCARDED: 0.0,
        keys.WASTE_RATIO: 0.0,
        keys.OFF_POLICY: 0.11,
        keys.STALENESS_MEAN: 0.12,
        keys.LENGTH_RATIO: (900.0 + step) / (910.0 + step),
        keys.ESS_RATIO: 0.97,
        keys.NOT_FINITE_TOK: 0.0,
        keys.FRESH_K3_KL: 0.0005,
        keys.K3_KL: 0.001,
    }


CALLS = {
    "search": CallFigures.of(2.0, is_failed=False) + CallFigures.of(8.0, is_failed=False),
    "<b>shell</b>\n\ud800": CallFigures.of(0.0, is_failed=True),
}


class RecordedRun:
    """Writes what the recipe's recorder and the lab's do: steps of 40 s, each with 28 s of rollout on two engines."""

    def __init__(self, folder: Path, *, causes: Mapping[str, int] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        run = RunDescription(
            name="math/partial", system="partial, first_completed", started_s=0.0, gpus=8, settings={"rollout.n": 16}
        )
        write_lines(folder / RUN_FILE, [asdict(run)])
        write_lines(folder / STEPS_FILE, [])
        self._steps_file, self._causes = folder / STEPS_FILE, causes or {}
        self._record = LabRecord(folder, started_s=0.0, first_step=1)
        self._began_s = 0.0

    def log(self, data: Mapping[str, float], step: int) -> None:
        line = StepRecord(step=step, time_s=self._began_s, data=data, causes=self._causes)
        with self._steps_file.open("a") as stream:
            stream.write(json.dumps(asdict(line)) + "\n")
        calls = call_line(step, CALLS)
        assert calls is not None
        self._record.add(step, self._take_timeline(), lengths=[{"step": step}], calls=[calls])

    def _take_timeline(self) -> StepTimeline:
        began_s, self._began_s = self._began_s, self._began_s + 40.0
        spans = [Span("rollout", began_s, began_s + 28), Span("training", began_s + 28, began_s + 38)]
        spans.append(Span("weights", began_s + 38, began_s + 40))
        samples = [LoadSample(began_s + second, 64 - 2 * second, max(0, 9 - second), 0.5) for second in range(28)]
        samples[10:15] = []  # it has not stepped: all that it had waited for calls
        waiting = [(began_s, 0), (began_s + 8, 40), (began_s + 15, 3)]
        engines = {"server-0": samples, "server-1": samples[:20]}
        return StepTimeline(spans=spans, engines=engines, waiting_for_calls=waiting)


def write_recipe_run(folder: Path, *, steps: int = 12, failed: int = 0) -> Path:
    run = RecordedRun(folder, causes={"reward_error: KeyError('acc') at <reward>.py:12": failed} if failed else {})
    run.log({ACCURACY: 0.2}, 0)
    for step in range(1, steps + 1):
        run.log(recipe_step(step, failed=failed) | ({ACCURACY: 0.2 + step / 40} if step % 4 == 0 else {}), step)
    return folder


def write_verl_run(folder: Path, *, steps: int = 12) -> Path:
    """With verl's own file logger."""
    folder.mkdir(parents=True)
    lines = [{"step": 0, "data": {ACCURACY: 0.2}}]
    for step in range(1, steps + 1):
        validation = {ACCURACY: 0.2 + step / 40, keys.VALIDATE_S: 5.0} if step % 4 == 0 else {}
        lines.append({"step": step, "data": verl_step(step, rollout_s=48.0) | validation})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
