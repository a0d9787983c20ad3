"""The same training job through verl's own trainer modes and through this recipe: real Ray, vLLM, FSDP2; one run.

python -m benchmarks.side_by_side --tails 8 25 2 --engines 1 --repetitions 3

Model, data, seeds, B, n, engine options and precision are the same in every row of a cell (a tail and a number of
engines), but for engines of their own with `partial_stale_kv`, which need every token at once (`stream_interval` 1),
and for KV in host memory, which needs engines that sleep, and small blocks. Rows are interleaved, repetition by
repetition, each of which begins with another one; repetitions differ in the seed of the engines' sampling. A machine's
speed drifts, so each run lies between two measurements of its bound: the same engines kept full (`full_engines`). Two
runs are compared where these four bounds are about equal. Writes `runs.csv`, and goes on where it ends;
`python -m benchmarks.side_by_side.draw FOLDER` draws the figure and prints the table. The project's own runs are in
`assets/side_by_side`.
"""

import argparse
import operator
import os
import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.full_engines.run import measure_all
from benchmarks.side_by_side import verl_checkpoint_engine
from benchmarks.support import learning_curve
from benchmarks.support.runs_file import RunsFile
from benchmarks.support.supervised_training import RECIPE, STREAM_INTERVAL, TAILS, WARM_UP_STEPS, RunLoad, train
from recipe.async_dapo.config.values import MOST_DRAFT_TOK
from recipe.async_dapo_lab.command_line import path
from recipe.async_dapo_lab.quickstart.model_and_data import Assets, prepare_assets
from recipe.async_dapo_lab.quickstart.overrides import (
    PROMPTS_PER_STEP,
    RESPONSES_PER_PROMPT,
    host_kv_overrides,
    recipe_overrides,
)
from recipe.async_dapo_lab.quickstart.run_metrics import ACCURACY, STEP_S, RunMetrics
from recipe.async_dapo_lab.quickstart.task import MAX_PROMPT_TOK

TRAJECTORIES_PER_STEP = PROMPTS_PER_STEP * RESPONSES_PER_PROMPT
TRAINED_TOK = "async_dapo/tokens/trained"
STALENESS = "training/off_policy/trajectory_staleness_worst/mean"  # of a trajectory's oldest token [versions]
FEWEST_STEPS = 8
TRAINER_PARTS = ("old_log_prob", "update_actor", "adv")  # of a step's seconds outside its rollout
REPREFILLED_TOK = "async_dapo/partial/reprefilled_tokens"
# Valid groups that verl throws away: sync those after the B-th, its asynchronous modes those that are too old.
VERL_DISCARDS = ("training/filter_groups/discarded_surplus_samples", "training/off_policy/evicted_samples")

VERL = "verl.trainer.main_ppo"
# The loss of every row; only the recipe's correction for older versions comes on top, as it is by default.
LOSS = (
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.actor.clip_ratio_low=0.2",
    "actor_rollout_ref.actor.clip_ratio_high=0.28",
    "actor_rollout_ref.actor.clip_ratio_c=3.0",
    "actor_rollout_ref.actor.loss_agg_mode=token-mean",
)
# What this recipe's configuration sets by default, for verl's own entry.
DAPO = (
    "++algorithm.filter_groups.enable=True",
    "++algorithm.filter_groups.metric=acc",
    f"++actor_rollout_ref.rollout.engine_kwargs.vllm.stream_interval={STREAM_INTERVAL}",
)


def verl_mode(mode: str, *, poll_s: float, batches_in_flight: int = 1) -> tuple[str, ...]:
    """One of verl's trainer modes.

    Args:
        poll_s: pause of its replay buffer between two looks [s]; verl's own is 2.
        batches_in_flight: that the sync mode generates at once, of B prompts each; verl's default is 1.
    """
    sampler = "++trainer.v1.sampler"
    return (
        f"trainer.v1.trainer_mode={mode}",
        f"{sampler}.custom_sampler.path={Path(__file__).with_name('verl_buffers.py')}",
        f"{sampler}.custom_sampler.name={'SyncBuffer' if mode == 'sync' else 'AsyncBuffer'}",
        f"{sampler}.sampler_kwargs.poll_s={poll_s}",
        f"{sampler}.sampler_kwargs.batches_in_flight={batches_in_flight}",
        *DAPO,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A row: verl's own trainer mode, or a strategy of this recipe."""

    verl_mode: tuple[str, ...] = ()
    strategy: str = ""
    stop_rule: str | None = None
    own: tuple[str, ...] = ()

    def entry(self, engines: int) -> list[str]:
        """Module and options."""
        if not self.strategy:
            return [VERL, *LOSS, *self.verl_mode]
        options = recipe_overrides(strategy=self.strategy, stop_rule=self.stop_rule)
        return [RECIPE, *LOSS, *options, *self.own]


# One (logical) GPU for the trainer, and one for an engine.
OWN_GPU = (
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.n_gpus_per_node=1",
    "++ray_kwargs.ray_init.num_gpus=2",
    "ray_kwargs.ray_init.num_cpus=24",
)
VERL_SEPARATE = (
    "actor_rollout_ref.hybrid_engine=False",
    f"actor_rollout_ref.rollout.checkpoint_engine.backend={verl_checkpoint_engine.NAME}",
    f"actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module={verl_checkpoint_engine.__name__}",
    "trainer.v1.separate_async.parameter_sync_step=1",  # one update of the weights a step, as in every other row
    *OWN_GPU,
)
SEPARATE = ("async_dapo.placement=separate", *OWN_GPU)
# vLLM's suffix decoding on both sides, which needs arctic-inference==0.1.1. vLLM drafts nothing near `max_model_len`,
# which the recipe allows for itself.
DRAFTS = ("async_dapo.drafts=suffix",)
VLLM = "++actor_rollout_ref.rollout.engine_kwargs.vllm"
VERL_DRAFTS = (
    f"{VLLM}.speculative_config.method=suffix",
    f"{VLLM}.speculative_config.num_speculative_tokens={MOST_DRAFT_TOK}",
    f"{VLLM}.max_model_len={MAX_PROMPT_TOK + max(shape.max_response_tok for shape in TAILS.values()) + MOST_DRAFT_TOK}",
)

# A step of one update needs no pass of log-probs before it: verl's options for that, and one with which this recipe has
# the pass.
CORRECTION = "++algorithm.rollout_correction"
VERL_NO_PASS = (f"{CORRECTION}.bypass_mode=True", f"{CORRECTION}.loss_type=reinforce", f"{CORRECTION}.rollout_is=token")
TWO_PASSES = (f"{CORRECTION}.rollout_is_threshold='1e-6_2.0'",)

SYSTEMS = {
    "verl sync": System(verl_mode=verl_mode("sync", poll_s=2.0)),
    "verl sync, 0.05 s poll": System(verl_mode=verl_mode("sync", poll_s=0.05)),
    "verl sync, 0.05 s poll, 2 batches": System(verl_mode=verl_mode("sync", poll_s=0.05, batches_in_flight=2)),
    "verl colocate_async": System(verl_mode=verl_mode("colocate_async", poll_s=2.0)),
    "verl colocate_async, 0.05 s poll": System(verl_mode=verl_mode("colocate_async", poll_s=0.05)),
    "verl colocate_async, 0.05 s poll, no pass": System(
        verl_mode=(*verl_mode("colocate_async", poll_s=0.05), *VERL_NO_PASS)
    ),
    "verl colocate_async, 0.05 s poll, drafts": System(
        verl_mode=(*verl_mode("colocate_async", poll_s=0.05), *VERL_DRAFTS)
    ),
    "discard, fifo": System(strategy="discard", stop_rule="fifo"),
    "partial": System(strategy="partial"),
    "partial, two passes": System(strategy="partial", own=TWO_PASSES),
    "partial, drafts": System(strategy="partial", own=DRAFTS),
    "partial_stale_kv, host memory": System(strategy="partial_stale_kv", own=(*host_kv_overrides(0.1),)),
    "verl separate_async, 0.05 s poll": System(verl_mode=(*verl_mode("separate_async", poll_s=0.05), *VERL_SEPARATE)),
    "separate, partial": System(strategy="partial", own=SEPARATE),
    "separate, partial_stale_kv": System(strategy="partial_stale_kv", own=SEPARATE),
    "separate, consistent": System(strategy="consistent", own=SEPARATE),
}


def figures(metrics: RunMetrics, load: RunLoad) -> dict[str, float | str]:
    """Over the steps after the warm-up, but for those after a validation, during which some systems generate."""
    every = {step: values for step, values in metrics.by_step.items() if STEP_S in values}
    validated = {step for step, _ in metrics.series(ACCURACY)}
    warm = [values for step, values in every.items() if step > WARM_UP_STEPS and step - 1 not in validated]
    step_s = [values[STEP_S] for values in warm]
    rollout_s = [values["timing_s/gen"] for values in warm]
    trained_tok = [values["response_length/mean"] * TRAJECTORIES_PER_STEP for values in warm]
    undisturbed = [step for step in every if step > WARM_UP_STEPS and not {step, step - 1} & validated]
    tenths_s = statistics.quantiles(step_s, n=10, method="inclusive")
    cpu_ms = 1000 * statistics.mean(load.step_cpu_s(undisturbed)) / TRAJECTORIES_PER_STEP
    return {
        "step_s": round(statistics.median(step_s), 3),
        "step_s_mean": round(statistics.mean(step_s), 3),
        "step_s_p10": round(tenths_s[0], 3),
        "step_s_p90": round(tenths_s[-1], 3),
        "rollout_s": round(statistics.median(rollout_s), 3),
        "rollout_s_mean": round(statistics.mean(rollout_s), 3),
        "trained_tok_per_s": round(sum(trained_tok) / sum(step_s), 1),
        "cpu_ms_per_trajectory": round(cpu_ms, 1),
        **{f"{part}_s": round(statistics.mean(step[f"timing_s/{part}"] for step in warm), 3) for part in TRAINER_PARTS},
        "engine_idle": round(load.idle_share(undisturbed), 3),
        "staleness": round(statistics.mean(values[STALENESS] for values in warm), 3),
        **(recipe_figures(warm, trained_tok) if TRAINED_TOK in warm[0] else verl_figures(warm)),
        # Training seconds so far and accuracy, at every validation.
        "validations": learning_curve.written(
            (sum(values[STEP_S] for at, values in every.items() if at <= step), accuracy)
            for step, accuracy in metrics.series(ACCURACY)
        ),
    }


def recipe_figures(steps: list[dict[str, float]], trained_tok: list[float]) -> dict[str, float | str]:
    """Shares of tokens; `generated_tok` leaves out what stays in the buffer."""
    total = {
        kind: sum(step[f"async_dapo/tokens/{kind}"] for step in steps) for kind in ("trained", "filtered", "discarded")
    }
    off_policy = [step["async_dapo/partial/off_policy_token_ratio"] for step in steps]
    return {
        "generated_tok": round(sum(total.values()) / len(steps)),
        "waste": round(total["discarded"] / (total["discarded"] + total["trained"]), 4),
        "off_policy": round(sum(map(operator.mul, off_policy, trained_tok)) / sum(trained_tok), 4),
        "reprefilled_tok": round(statistics.mean(step[REPREFILLED_TOK] for step in steps)),
    }


def verl_figures(steps: list[dict[str, float]]) -> dict[str, float | str]:
    """verl counts groups, not tokens, and only in steps that threw some away."""
    discarded = sum(step.get(key, 0.0) for step in steps for key in VERL_DISCARDS)
    trained = len(steps) * PROMPTS_PER_STEP
    return {
        "generated_tok": "",
        "waste": round(discarded / (discarded + trained), 4),
        "off_policy": "",
        "reprefilled_tok": "",
    }


def run(name: str, assets: Assets, folder: Path, steps: int, seed: int, engines: int) -> dict[str, float | str]:
    """One system's columns."""
    result = train(SYSTEMS[name].entry(engines), assets, folder, steps=steps, seed=seed, engines=engines)
    return {"steps": steps, **figures(*result)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tails", type=int, nargs="+", choices=TAILS, default=list(TAILS))
    parser.add_argument("--engines", type=int, nargs="+", default=[1])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--first-repetition", type=int, default=0, help="its number, to add to a file's repetitions")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--output", type=path, default=Path("outputs", "side_by_side"))
    parser.add_argument("--runs", type=path, default=Path("outputs", "side_by_side"), help="folder of the runs' logs")
    options = parser.parse_args()
    if options.steps < FEWEST_STEPS:
        parser.error(f"--steps {options.steps}: at least {FEWEST_STEPS}, or no two steps are left to count")
    os.environ.setdefault("VERL_LOGGING_LEVEL", "WARN")  # verl's separate_async fails at what it says at INFO
    logs = options.runs.absolute()
    runs = RunsFile(options.output / "runs.csv")
    for repetition in range(options.first_repetition, options.first_repetition + options.repetitions):
        turn = repetition % len(options.systems)
        for tail in options.tails:
            assets = prepare_assets(logs, seed=0, shape=TAILS[tail])
            for engines in options.engines:
                bound = partial(measure_all, assets, tail=tail, engines=engines, folder=logs)
                before: int | None = None
                for name in options.systems[turn:] + options.systems[:turn]:
                    cell = {"tail": tail, "engines": engines, "system": name, "repetition": repetition}
                    if runs.has(**cell):
                        before = None  # that was another time
                        continue
                    before = before or bound()
                    folder = logs / runs.folder_name(cell)
                    row = run(name, assets, folder, options.steps, repetition, engines)
                    after = bound()
                    runs.add({**cell, **row, "bound_before": before, "bound_after": after})
                    before = after
