"""Three training steps through the recipe's own entry, judged by the metrics that they log."""

import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import psutil

from ...async_dapo.config.extensions import declared
from ...async_dapo.config.values import SUFFIX_PACKAGE
from ...async_dapo.record import keys
from ..quickstart.activation import run_environment
from ..quickstart.model_and_data import Assets
from ..quickstart.overrides import (
    PROMPTS_PER_STEP,
    RunSettings,
    host_kv_overrides,
    quoted,
    recipe_overrides,
    run_overrides,
    verl_overrides,
)
from ..quickstart.run_metrics import RunMetrics
from ..quickstart.supervision import RayFolder, TrainingProcess
from . import reward
from .supervised import run_supervised
from .verdicts import Verdict, failed, passed

STEPS = 3
REPORT = "this must not happen on any hardware: do not train, and report it with the folder of the output"
_OTHER_PROBABILITIES = (
    "engine and trainer compute different probabilities; to find the cause, train with "
    "actor_rollout_ref.rollout.enforce_eager=True, then with VLLM_USE_V2_MODEL_RUNNER=0"
)
ENTRY = f"{__package__.rsplit('.', 2)[0]}.async_dapo.main_async_dapo"
CODE_PATH = Path(__file__).resolve().parents[__package__.count(".") + 1]

_FRESH_RATIO = keys.PREFIX + "importance/staleness_0/ratio_max"
_ENGINE_TITLE = re.compile(r"VLLM::EngineCore\b")
_MAX_PROMPT_TOK, _MAX_RESPONSE_TOK = 128, 512  # on a GPU, for any tokenizer
# CUDA graphs without torch.compile, which takes a minute and says little of what is checked.
GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}

Step = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshBounds:
    """Of pi_prox / mu over tokens that the trained version itself has sampled: 1, but for rounding."""

    ratio_max: float  # of a token
    k3_kl: float  # of a step [nats per token]


BOUNDS = {"cpu": FreshBounds(ratio_max=1.001, k3_kl=1e-7), "cuda": FreshBounds(ratio_max=3.0, k3_kl=5e-3)}
OF_FP8 = FreshBounds(ratio_max=20.0, k3_kl=0.05)
# Engines never sample a picture's placeholders, two of a tiny vocabulary's tokens; the trainer gives them their share.
OF_PICTURES = FreshBounds(ratio_max=3.0, k3_kl=1e-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run of the entry."""

    name: str
    strategy: str = "partial"
    stop_rule: str | None = None  # the strategy's own
    gpus: int = 1  # that train
    engine_gpus: int = 0  # of engines that have their own
    tensor_parallel_size: int = 1
    overrides: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    kills_an_engine: bool = False  # after its first step
    host_kv_gib: float | None = None  # in which KV outlives the sleep of engines
    package: str = ""  # without which it cannot run, one of `PACKAGES`
    extension: str = ""  # without which it cannot run
    training_engine: str = "dp"  # of verl: FSDP
    bounds: FreshBounds | None = None  # None: the device's
    family: str = ""  # of `families.py`, in place of the model of all other cases
    is_compiled: bool = False  # by torch.compile, trainer and engine, as in a run of one's own
    on_gpus_only: bool = False
    steps: int = STEPS

    @property
    def needed_gpus(self) -> int:
        return self.gpus + self.engine_gpus

    def why_left_out(self) -> str:
        """What it needs and is not installed, or not in this copy; empty where nothing is missing."""
        if self.extension and self.extension not in declared():
            return f"needs extensions/{self.extension}, which is not in this copy"
        if self.package and find_spec(self.package) is None:
            return f"needs a package; run: pip install {PACKAGES[self.package]}"
        return ""


STOP_LIMIT_S = 5.0  # a stop takes some engine steps; longer, and it waits for something
LEAST_ESS = 0.5  # after two small updates; lower, and old tokens are corrected wrongly


_VLLM = "++actor_rollout_ref.rollout.engine_kwargs.vllm"
# vLLM would measure how much memory is free, and fails where other work takes or frees some meanwhile.
KV_CACHE_BYTES = 4 * 2**30
BESIDE = (f"{_VLLM}.kv_cache_memory_bytes={KV_CACHE_BYTES}",)
# Name in Python -> what pip installs.
PACKAGES = {"arctic_inference": SUFFIX_PACKAGE, "megatron": "'verl[megatron]'", "veomni": "veomni"}
# Those of one GPU, or of the CPU.
CASES = (
    Case(name="partial"),
    Case(name="drafts", extension="drafts", package="arctic_inference", overrides=("async_dapo.drafts=suffix",)),
    Case(
        name="experts",
        extension="route_replay",
        family="experts",
        overrides=("actor_rollout_ref.rollout.enable_rollout_routing_replay=True",),
    ),
    Case(name="images", extension="pictures", family="images", bounds=OF_PICTURES),
    Case(name="partial_stale_kv, host memory", extension="host_kv", strategy="partial_stale_kv", host_kv_gib=4.0),
    Case(name="FP8 cache", overrides=(f"{_VLLM}.kv_cache_dtype=fp8",), bounds=OF_FP8, on_gpus_only=True),
    *(Case(name=name, strategy=name, on_gpus_only=True) for name in ("discard", "consistent")),
    Case(name="partial, no async scheduling", overrides=(f"{_VLLM}.async_scheduling=False",), on_gpus_only=True),
    Case(name="partial, first model runner", environment={"VLLM_USE_V2_MODEL_RUNNER": "0"}, on_gpus_only=True),
    Case(name="partial, compiled", is_compiled=True, on_gpus_only=True),
    Case(name="Megatron", package="megatron", training_engine="megatron", on_gpus_only=True),
    Case(name="VeOmni", package="veomni", training_engine="veomni", on_gpus_only=True),
)
SEPARATE = Case(
    name="separate",
    extension="separate",
    engine_gpus=1,
    overrides=(
        "async_dapo.placement=separate",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
        "ray_kwargs.ray_init.num_cpus=20",
    ),
)
# Those of two GPUs. On GPUs they use NCCL between ranks, on a CPU gloo.
OF_TWO = (
    Case(name="tensor parallel 2", gpus=2, tensor_parallel_size=2),
    Case(name="two FSDP ranks", gpus=2),
    Case(name="one engine killed", gpus=2, kills_an_engine=True, steps=STEPS + 2),
    SEPARATE,
)


def judge_training(steps: Sequence[Step], ended: str, *, case: Case, bounds: FreshBounds) -> Verdict:
    """The first thing that is wrong, or what was measured."""
    if len(steps) < case.steps:
        return failed(
            f"{len(steps)} of {case.steps} steps: {ended or 'training ended without them'}",
            "read its train.log; where the machine passes, report it with the folder of the output",
        )
    for number, step in enumerate(steps, start=1):
        if words := _broken(step, number):
            return failed(f"step {number}: {words}", REPORT)
        if words := _other_probabilities(step, number, bounds):
            return failed(f"step {number}: {words}", _OTHER_PROBABILITIES)
    if not any(_FRESH_RATIO in step for step in steps):
        return failed("no step has tokens of its own version", REPORT)
    if case.host_kv_gib and not sum(step[keys.FOUND_TOK] for step in steps):
        return failed("no continued request has found its KV in host memory", REPORT)
    lost, killed = steps[-1][keys.PREFIX + "load_balancer/lost_servers"], int(case.kills_an_engine)
    if lost != killed:
        return failed(
            f"{lost:.0f} engines were lost, {killed} killed", "read its train.log: it names the engine and why it ended"
        )
    drafts = any(override.startswith("async_dapo.drafts=") for override in case.overrides)
    return passed(_measured(steps, drafts=drafts))


def _broken(step: Step, number: int) -> str:
    """What no hardware may change: ledger, batch, importance weights."""
    drawn, *terms = (step[keys.LEDGER + term] for term in keys.LEDGER_TERMS)
    if drawn != sum(terms):
        return f"the ledger does not close: {drawn:.0f} drawn, {sum(terms):.0f} accounted for"
    trained, in_all = step[keys.TRAINED_GROUPS], step[keys.LEDGER + "trained"]
    if trained != PROMPTS_PER_STEP or in_all != number * PROMPTS_PER_STEP:
        return f"trained on {trained:.0f} groups, {in_all:.0f} in all, not on {PROMPTS_PER_STEP} a step"
    if failures := step[keys.FAILED_GROUPS]:
        return f"{failures:.0f} groups failed"
    if step[keys.NOT_FINITE_TOK]:
        return "importance weights are not finite"
    if (stop_s := step.get(keys.STOP_LATENCY_S, 0.0)) > STOP_LIMIT_S:
        return f"engines stopped after {stop_s:.1f} s, at most {STOP_LIMIT_S:g} s"
    ess = step[keys.ESS_RATIO]
    if not math.isfinite(ess) or ess < LEAST_ESS:
        return f"effective sample size {ess:.3g}, at least {LEAST_ESS}"
    return ""


def _other_probabilities(step: Step, number: int, bounds: FreshBounds) -> str:
    """Of tokens that the trained version has sampled; a later step may have older ones alone."""
    ratio = step.get(_FRESH_RATIO, 1.0)
    kl = step[keys.K3_KL] if number == 1 else step.get(keys.FRESH_K3_KL, 0.0)  # all tokens of the first are fresh
    if not ratio <= bounds.ratio_max:  # or it is not a number
        return f"a fresh token has a ratio of {ratio:.6f}, at most {bounds.ratio_max:g}"
    if not kl <= bounds.k3_kl:
        return f"fresh tokens have a k3 KL of {kl:.2g} nats, at most {bounds.k3_kl:g}"
    return ""


def _measured(steps: Sequence[Step], *, drafts: bool) -> str:
    seconds = ", ".join(f"{step[keys.STEP_S]:.1f}" for step in steps)
    fresh_kl, least = steps[0][keys.K3_KL], min(step[keys.ESS_RATIO] for step in steps)
    drafted = max(step.get(keys.DRAFT_TOK_PER_STEP, 0.0) for step in steps)
    stop_s, weights_s = (max(step.get(key, 0.0) for step in steps) for key in (keys.STOP_LATENCY_S, keys.WEIGHTS_S))
    return (
        f"steps of {seconds} s, stops within {1e3 * stop_s:.0f} ms, weights sent in {weights_s:.2f} s; k3 KL of fresh "
        f"tokens {fresh_kl:.1g}, least effective sample size {least:.3f}"
        + (f", {drafted:.2f} tokens a step of an engine" if drafted else ", no draft was made" if drafts else "")
    )


def train(
    case: Case,
    assets: Assets,
    model: Path,
    *,
    device: str,
    folder: Path,
    timeout_s: float,
    on_watch: Callable[[TrainingProcess], None] = lambda process: None,
) -> tuple[list[Step], str]:
    """Metrics of the steps, and how the run ended if it did not end well."""
    return run_entry(
        ENTRY,
        lambda ray_folder: overrides(case, assets, model, device=device, folder=folder, ray_folder=ray_folder),
        device=device,
        folder=folder,
        timeout_s=timeout_s,
        environment=case.environment,
        kills_an_engine=case.kills_an_engine,
        on_watch=on_watch,
    )


def run_entry(
    module: str,
    options: Callable[[Path], Iterable[str]],
    *,
    device: str,
    folder: Path,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    kills_an_engine: bool = False,
    on_watch: Callable[[TrainingProcess], None] = lambda process: None,
) -> tuple[list[Step], str]:
    """Train with a module of Hydra options, which may be verl's own.

    Args:
        options: the overrides, for a folder in which Ray keeps its files.

    Returns:
        Metrics of the steps, and how the run ended if it did not end well.
    """
    folder.mkdir(parents=True, exist_ok=True)
    metrics = RunMetrics(file=folder / "metrics.jsonl")
    metrics.file.unlink(missing_ok=True)
    with RayFolder() as ray:
        own = run_environment(os.environ, code_path=CODE_PATH, output=folder, ray_folder=ray.path)
        if device != "cpu":
            del own["VERL_PLATFORM"]
        killer = _EngineKiller(metrics)

        def look(process: TrainingProcess) -> None:
            on_watch(process)
            if kills_an_engine:
                killer.look(process)

        ended = run_supervised(
            [sys.executable, "-m", module, *options(ray.path)],
            environment=own | {"TMPDIR": str(ray.path), **(environment or {})},
            log=folder / "train.log",
            timeout_s=timeout_s,
            on_watch=look,
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


def overrides(case: Case, assets: Assets, model: Path, *, device: str, folder: Path, ray_folder: Path) -> list[str]:
    """Hydra overrides of a case, for the recipe's entry."""
    settings = RunSettings(
        assets=assets, output=folder, ray_folder=ray_folder, steps=case.steps, seed=0, engines=case.gpus
    )
    own = verl_overrides(settings) if device == "cpu" else (*run_overrides(settings), *_case_overrides(case))
    local = f"{_VLLM}.distributed_executor_backend=mp"
    return [
        *own,
        *([local] if device == "cpu" and case.tensor_parallel_size > 1 else []),
        *([f"++ray_kwargs.ray_init.num_gpus={case.needed_gpus}"] if device == "cpu" else []),
        *recipe_overrides(strategy=case.strategy, stop_rule=case.stop_rule),
        f"actor_rollout_ref.model.path={quoted(model)}",
        f"actor_rollout_ref.rollout.tensor_model_parallel_size={case.tensor_parallel_size}",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.logger=[console,file]",
        f"async_dapo.report_dir={quoted(folder)}",
        f"model_engine={case.training_engine}",
        *(_family_overrides(assets) if case.family else []),
        *(host_kv_overrides(case.host_kv_gib) if case.host_kv_gib else []),
        *case.overrides,
    ]


def gpu_overrides(
    *,
    prompt_tok: int,
    response_tok: int,
    trained_at_once_tok: int,
    is_compiled: bool = False,
    has_fsdp: bool = True,
) -> Iterator[str]:
    """The reference script's way of training: dynamic batches, remove padding, flash attention if it is installed."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    yield f"data.max_prompt_length={prompt_tok}"
    yield f"data.max_response_length={response_tok}"
    yield f"reward.custom_reward_function.path={quoted(Path(reward.__file__))}"
    if has_fsdp:
        yield f"{actor}.strategy=fsdp2"
    yield "actor_rollout_ref.model.use_remove_padding=True"
    if has_fsdp and find_spec("flash_attn") is None:
        yield "++actor_rollout_ref.model.override_config.attn_implementation=sdpa"
        yield "actor_rollout_ref.model.use_fused_kernels=True"  # else log-probs are a loop over tokens
    yield f"{actor}.use_dynamic_bsz=True"
    yield f"{actor}.ppo_max_token_len_per_gpu={trained_at_once_tok}"
    yield f"{rollout}.name=vllm"
    yield f"{rollout}.tensor_model_parallel_size=1"
    yield f"{rollout}.max_model_len={prompt_tok + response_tok}"
    if not is_compiled:
        graphs = ",".join(f"{key}:{value}" for key, value in GRAPHS.items())
        yield f"{_VLLM}.compilation_config={{{graphs}}}"
    if has_fsdp and not is_compiled:
        yield f"{actor}.use_torch_compile=False"
        yield f"{actor}.fsdp_config.use_torch_compile=False"


def _family_overrides(assets: Assets) -> Iterator[str]:
    yield f"data.max_prompt_length={_MAX_PROMPT_TOK}"
    yield f"data.max_response_length={assets.shape.max_response_tok}"
    yield f"actor_rollout_ref.rollout.max_model_len={_MAX_PROMPT_TOK + assets.shape.max_response_tok}"
    yield f"reward.custom_reward_function.path={quoted(Path(reward.__file__))}"
    yield "actor_rollout_ref.model.use_remove_padding=False"  # with it, pictures need flash attention


def _case_overrides(case: Case) -> Iterator[str]:
    rollout, longest_tok = "actor_rollout_ref.rollout", _MAX_PROMPT_TOK + _MAX_RESPONSE_TOK
    yield from gpu_overrides(
        prompt_tok=_MAX_PROMPT_TOK,
        response_tok=_MAX_RESPONSE_TOK,
        trained_at_once_tok=8 * longest_tok,
        is_compiled=case.is_compiled,
        has_fsdp=case.training_engine == "dp",
    )
    yield "actor_rollout_ref.actor.optim.lr=1e-5"
    yield f"{rollout}.gpu_memory_utilization=0.4"
    yield f"{rollout}.max_num_seqs=256"
    yield f"{rollout}.free_cache_engine=True"
