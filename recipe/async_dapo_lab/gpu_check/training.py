"""Three training steps through the recipe's own entry, judged by the metrics that they log."""

import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ...async_dapo.cpu.activation import run_environment
from ..quickstart.overrides import (
    PROMPTS_PER_STEP,
    RESPONSES_PER_PROMPT,
    RunSettings,
    quoted,
    recipe_overrides,
    verl_overrides,
)
from ..quickstart.run_metrics import LEDGER, STEP_S, RunMetrics
from ..quickstart.summary import LEDGER_TERMS
from ..quickstart.supervision import RayFolder, TrainingProcess
from . import reward
from .assets import Subject
from .supervised import run_supervised
from .verdicts import Verdict, failed, passed

STEPS = 3
ENTRY = f"{__package__.rsplit('.', 2)[0]}.async_dapo.main_async_dapo"
CODE_PATH = Path(__file__).resolve().parents[__package__.count(".") + 1]

_PREFIX = "async_dapo/"
_FRESH = _PREFIX + "importance/staleness_0/"
_ENGINE_TITLE = re.compile(r"VLLM::EngineCore\b")
_MAX_PROMPT_TOK, _MAX_RESPONSE_TOK = 128, 512  # on a GPU, for any tokenizer

Step = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run of the entry."""

    name: str
    strategy: str = "partial"
    stop_rule: str | None = None  # the strategy's own
    gpus: int = 1
    tensor_parallel_size: int = 1
    overrides: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    kills_an_engine: bool = False  # after its first step
    steps: int = STEPS

    @property
    def engines(self) -> int:
        return self.gpus // self.tensor_parallel_size


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshBounds:
    """Of pi_prox / mu over tokens that the trained version itself has sampled: 1, but for rounding."""

    ratio_mean: float  # distance of the mean ratio from 1
    k3_kl: float  # [nats per token]


BOUNDS = {"cpu": FreshBounds(ratio_mean=1e-4, k3_kl=1e-7), "cuda": FreshBounds(ratio_mean=0.02, k3_kl=5e-3)}
LEAST_ESS = 0.5  # after two small updates; lower, and old tokens are corrected wrongly


def cases(device: str, *, full: bool) -> Iterator[Case]:
    """Those of one GPU, or of the CPU."""
    yield Case(name="partial")
    if device == "cpu" and not full:
        return
    for strategy in ("discard", "partial_stale_kv", "consistent"):
        yield Case(name=strategy, strategy=strategy)
    if device == "cuda":
        off = "++actor_rollout_ref.rollout.engine_kwargs.vllm.async_scheduling=False"
        yield Case(name="partial, no async scheduling", overrides=(off,))
        yield Case(name="partial, first model runner", environment={"VLLM_USE_V2_MODEL_RUNNER": "0"})
    if full:
        for strategy, rule in (
            ("discard", "first_completed"),
            ("discard", "drain"),
            ("partial", "fifo"),
            ("partial_stale_kv", "fifo"),
        ):
            yield Case(name=f"{strategy}, {rule}", strategy=strategy, stop_rule=rule)


def judge_training(
    steps: Sequence[Step], ended: str, *, case: Case, bounds: FreshBounds, batch: int = PROMPTS_PER_STEP
) -> Verdict:
    """The first thing that is wrong, or what was measured."""
    if len(steps) < case.steps:
        return failed(
            f"{len(steps)} of {case.steps} steps: {ended or 'training ended without them'}",
            "its train.log says more; `python -m recipe.async_dapo.check` looks for mistakes in options",
        )
    for number, step in enumerate(steps, start=1):
        for judge in (_judge_ledger, _judge_batch, _judge_importance):
            if words := judge(step, number, batch):
                return failed(f"step {number}: {words}", _REPORT)
        if words := _judge_fresh(step, bounds):
            return failed(f"step {number}: {words}", _SAME_WEIGHTS)
    if not any(_FRESH + "ratio_mean" in step for step in steps):
        return failed("no step has tokens of its own version", _REPORT)
    if lost := _lost_servers(steps, case):
        return failed(lost, "its train.log names the engine and why it ended")
    return passed(_measured(steps))


_REPORT = "this must not happen on any hardware: please report it with the folder of the output"
_SAME_WEIGHTS = (
    "engine and trainer compute different probabilities for the same weights: see the checks of log-probs and weights"
)


def _judge_ledger(step: Step, number: int, batch: int) -> str:
    drawn, *terms = (step[LEDGER + term] for term in LEDGER_TERMS)
    return (
        "" if drawn == sum(terms) else f"the ledger does not close: {drawn:.0f} drawn, {sum(terms):.0f} accounted for"
    )


def _judge_batch(step: Step, number: int, batch: int) -> str:
    trained, in_all = step[_PREFIX + "round/trained_groups"], step[LEDGER + "trained"]
    if trained != batch or in_all != number * batch:
        return f"trained on {trained:.0f} groups, {in_all:.0f} in all, not on {batch} a step"
    if step[_PREFIX + "failure/groups"]:
        return f"{step[_PREFIX + 'failure/groups']:.0f} groups failed"
    return ""


def _judge_importance(step: Step, number: int, batch: int) -> str:
    if step[_PREFIX + "importance/not_finite_tokens"]:
        return "importance weights that are no finite number"
    ess = step[_PREFIX + "importance/overall/ess_ratio"]
    if not math.isfinite(ess) or ess < LEAST_ESS:
        return f"effective sample size {ess:.3g}, least {LEAST_ESS}"
    return ""


def _judge_fresh(step: Step, bounds: FreshBounds) -> str:
    """A step may have older tokens alone."""
    mean, kl = step.get(_FRESH + "ratio_mean", 1.0), step.get(_FRESH + "k3_kl", 0.0)
    if abs(mean - 1) > bounds.ratio_mean or kl > bounds.k3_kl:
        return (
            f"fresh tokens have a mean ratio of {mean:.6f} (limit 1 +- {bounds.ratio_mean:g}) and a k3 KL of {kl:.2g} "
            f"(limit {bounds.k3_kl:g})"
        )
    return ""


def _lost_servers(steps: Sequence[Step], case: Case) -> str:
    lost = steps[-1][_PREFIX + "load_balancer/lost_servers"]
    if case.kills_an_engine:
        return "" if lost == 1 else f"{lost:.0f} engines were lost, and one was killed"
    return f"{lost:.0f} engines were lost" if lost else ""


def _measured(steps: Sequence[Step]) -> str:
    seconds = ", ".join(f"{step[STEP_S]:.1f}" for step in steps)
    fresh = [step[_FRESH + "k3_kl"] for step in steps if _FRESH + "k3_kl" in step]
    ess = min(step[_PREFIX + "importance/overall/ess_ratio"] for step in steps)
    return f"steps of {seconds} s; fresh k3 KL {max(fresh):.1g}, least effective sample size {ess:.3f}"


def figures(steps: Sequence[Step]) -> dict[str, Any]:
    """For the file: of every step."""
    names = {
        "step_s": STEP_S,
        "fresh_ratio_mean": _FRESH + "ratio_mean",
        "fresh_k3_kl": _FRESH + "k3_kl",
        "ess_ratio": _PREFIX + "importance/overall/ess_ratio",
        "off_policy_token_ratio": _PREFIX + "partial/off_policy_token_ratio",
    }
    return {short: [step.get(name) for step in steps] for short, name in names.items()}


def train(case: Case, subject: Subject, *, device: str, folder: Path, timeout_s: float) -> tuple[list[Step], str]:
    """Metrics of the steps, and how the run ended if it did not end well."""
    folder.mkdir(parents=True, exist_ok=True)
    metrics = RunMetrics(file=folder / "metrics.jsonl")
    with RayFolder() as ray:
        environment = run_environment(os.environ, code_path=CODE_PATH, output=folder, ray_folder=ray.path)
        if device != "cpu":
            del environment["VERL_PLATFORM"]
        environment |= {"TMPDIR": str(ray.path), **case.environment}
        killer = _EngineKiller(metrics)
        ended = run_supervised(
            [sys.executable, "-m", ENTRY, *overrides(case, subject, device=device, folder=folder, ray_folder=ray.path)],
            environment=environment,
            log=folder / "train.log",
            timeout_s=timeout_s,
            on_watch=killer.look if case.kills_an_engine else lambda process: None,
        )
        if ended:
            ray.save_logs(folder / "ray_logs")
    metrics.read_new()
    return list(metrics.steps), ended


class _EngineKiller:
    """Kills one engine, once a step has been trained."""

    def __init__(self, metrics: RunMetrics) -> None:
        self._metrics, self._has_killed = metrics, False

    def look(self, process: TrainingProcess) -> None:
        self._metrics.read_new()
        if self._has_killed or not self._metrics.trained_steps:
            return
        for engine in filter(_is_engine, process.descendants()):
            engine.kill()
            self._has_killed = True
            return


def _is_engine(process: psutil.Process) -> bool:
    try:
        return _ENGINE_TITLE.match(" ".join(process.cmdline())) is not None
    except psutil.Error:
        return False


def overrides(case: Case, subject: Subject, *, device: str, folder: Path, ray_folder: Path) -> list[str]:
    """Hydra overrides of a case, for the recipe's entry."""
    if subject.quick_start is not None:
        settings = RunSettings(
            assets=subject.quick_start,
            output=folder,
            ray_folder=ray_folder,
            steps=case.steps,
            seed=0,
            engines=case.gpus,
        )
        own = [*verl_overrides(settings), f"actor_rollout_ref.model.path={quoted(subject.model)}"]
        if case.tensor_parallel_size > 1:
            own.append("++actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=mp")
    else:
        own = list(_gpu_overrides(case, subject, folder=folder, ray_folder=ray_folder))
    return [
        *own,
        *recipe_overrides(strategy=case.strategy, stop_rule=case.stop_rule),
        f"actor_rollout_ref.rollout.tensor_model_parallel_size={case.tensor_parallel_size}",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.logger=[console,file]",
        f"async_dapo.report_dir={quoted(folder)}",
        *case.overrides,
    ]


def _gpu_overrides(case: Case, subject: Subject, *, folder: Path, ray_folder: Path) -> Iterator[str]:
    """The reference script's way of training, on a small model: flash attention, dynamic batches, remove padding."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    longest_tok = _MAX_PROMPT_TOK + _MAX_RESPONSE_TOK
    yield "trainer.nnodes=1"
    yield f"trainer.n_gpus_per_node={case.gpus}"
    yield f"ray_kwargs.ray_init.num_cpus={12 + 4 * case.gpus}"
    yield "++ray_kwargs.ray_init.include_dashboard=False"
    yield f"++ray_kwargs.ray_init._temp_dir={quoted(ray_folder)}"
    yield f"data.train_files={quoted(subject.train_file)}"
    yield f"data.val_files={quoted(subject.validation_file)}"
    yield f"data.train_batch_size={PROMPTS_PER_STEP}"
    yield f"data.max_prompt_length={_MAX_PROMPT_TOK}"
    yield f"data.max_response_length={_MAX_RESPONSE_TOK}"
    yield f"reward.custom_reward_function.path={quoted(Path(reward.__file__))}"
    yield "reward.custom_reward_function.name=compute_score"
    yield f"actor_rollout_ref.model.path={quoted(subject.model)}"
    yield "actor_rollout_ref.model.use_remove_padding=True"
    yield f"{actor}.ppo_mini_batch_size={PROMPTS_PER_STEP}"
    yield f"{actor}.use_dynamic_bsz=True"
    yield f"{actor}.ppo_max_token_len_per_gpu={8 * longest_tok}"
    yield f"{actor}.optim.lr=1e-5"
    yield f"{rollout}.n={RESPONSES_PER_PROMPT}"
    yield f"{rollout}.gpu_memory_utilization=0.4"
    yield f"{rollout}.max_model_len={longest_tok}"
    yield f"{rollout}.max_num_seqs=256"
    yield f"{rollout}.agent.num_workers=1"
    yield f"{rollout}.free_cache_engine={case.strategy != 'partial_stale_kv'}"
    yield f"trainer.total_training_steps={case.steps}"
    yield "trainer.total_epochs=1000"
    yield "trainer.save_freq=-1"
    yield "trainer.resume_mode=disable"
    yield f"trainer.default_local_dir={quoted(folder / 'checkpoints')}"
    yield f"hydra.run.dir={quoted(folder / 'hydra')}"
