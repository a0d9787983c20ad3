"""One rehearsal as the columns of a benchmark's row, and the overrides that rehearse a scenario of the planner."""

from collections.abc import Sequence
from pathlib import Path

from recipe.async_dapo_lab.plan.lengths import LogNormalLengths
from recipe.async_dapo_lab.plan.scenario import Scenario
from recipe.async_dapo_lab.plan.workload import ValidShare
from recipe.async_dapo_lab.quickstart.supervision import exit_on_signals
from recipe.async_dapo_lab.rehearsal.supervisor import rehearse

MAX_PROMPT_TOK = 256  # of the stand-in prompts, at most
SLACK_TOK = 1024  # beyond the longest trajectory, in a micro batch


def overrides_of(scenario: Scenario) -> list[str]:
    """The same cluster, model and task on stand-in prompts. Lengths are log-normal, a share of groups is valid."""
    lengths, pass_rates = scenario.lengths, scenario.pass_rates
    assert isinstance(lengths, LogNormalLengths) and isinstance(pass_rates, ValidShare)
    rollout = "actor_rollout_ref.rollout"
    drafts = [] if scenario.drafts_accepted is None else [f"rehearsal.drafts_accepted={scenario.drafts_accepted}"]
    return [
        *drafts,
        f"rehearsal.model={scenario.model.name}",
        f"rehearsal.accelerator={scenario.accelerator.name}",
        f"rehearsal.length_median_tok={lengths.median_tok}",
        f"rehearsal.length_sigma={lengths.sigma}",
        f"rehearsal.length_correlation={lengths.correlation}",
        f"rehearsal.valid_share={pass_rates.share}",
        f"rehearsal.prompt_len_tok={scenario.prompt_len_tok}",
        f"{rollout}.tensor_model_parallel_size={scenario.tensor_parallel_size}",
        f"{rollout}.gpu_memory_utilization={scenario.gpu_memory_utilization}",
        f"{rollout}.max_num_seqs={scenario.max_num_seqs}",
        *batch_overrides(
            gpus=scenario.num_gpus,
            groups=scenario.train_batch_size,
            n=scenario.rollout_n,
            limit_tok=scenario.max_response_length,
        ),
    ]


def batch_overrides(*, gpus: int, groups: int, n: int, limit_tok: int) -> list[str]:
    """Training steps of B groups on stand-in prompts, and nothing else: no validation, no checkpoint."""
    return [
        "rehearsal.stand_in=True",
        "trainer.nnodes=1",
        f"trainer.n_gpus_per_node={gpus}",
        f"data.train_batch_size={groups}",
        f"data.max_prompt_length={MAX_PROMPT_TOK}",
        f"data.max_response_length={limit_tok}",
        f"actor_rollout_ref.rollout.n={n}",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={limit_tok + SLACK_TOK}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={groups}",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
    ]


def verl_overrides(mode: str, *, poll_s: float) -> tuple[str, ...]:
    """One of verl's own trainer modes."""
    return f"trainer.v1.trainer_mode={mode}", f"rehearsal.poll_s={poll_s}"


def measure(
    overrides: Sequence[str], folder: Path, *, steps: int, warmup: int, speedup: float
) -> dict[str, float | str]:
    """Columns of a rehearsal; times are virtual seconds. SIGTERM ends it, as Ctrl-C does."""
    exit_on_signals()
    rehearsal = rehearse(
        [
            *overrides,
            f"rehearsal.speedup={speedup}",
            f"rehearsal.steps={steps}",
            f"rehearsal.warmup={warmup}",
            f"rehearsal.output='{folder}'",
        ]
    )
    mean, validity = rehearsal.mean, rehearsal.validity
    return {
        "steps": steps - warmup,
        "step_s": round(mean.step_s, 2),
        "rollout_s": round(mean.rollout_s, 2),
        "idle": round(mean.idle, 3),
        "tok_per_s_per_gpu": round(mean.tokens_per_s_per_gpu, 1),
        "bound_s": round(rehearsal.bound.step_s, 2),
        "bound_share": round(mean.bound_share, 3),
        "waste": round(mean.waste, 4),
        "off_policy": "" if mean.off_policy is None else round(mean.off_policy, 4),
        "staleness": round(mean.staleness, 3),
        "length_bias": round(mean.length_bias, 3),
        "engine_late_share": round(validity.engine_late_share, 5),
        "trainer_late_share": round(validity.trainer_late_share, 5),
        "cpu_share": round(validity.cpu_share, 3),
        "is_valid": str(validity.is_valid),
        "wall_s": round(rehearsal.wall_s),
        "peak_memory_gb": round(rehearsal.peak_memory_gb, 2),
    }
