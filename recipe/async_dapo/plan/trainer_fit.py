"""Whether trainer and engines fit on the same GPUs, as far as arithmetic tells: rows that do not are not simulated."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..config import ConfigError, RolloutStrategy
from ..core.trainer_memory import TrainerMemory
from .candidates import Candidate
from .scenario import Scenario

FSDP = "actor_rollout_ref.actor.fsdp_config."
OFFLOADS = (f"{FSDP}param_offload=True", f"{FSDP}optimizer_offload=True")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Of all candidates, those that fit.

    Args:
        notes: what does not, and what would.
        overrides: options of the trainer that those need which fit.
    """

    candidates: list[Candidate]
    notes: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()


def fitting(scenario: Scenario, candidates: Sequence[Candidate]) -> Fit:
    """Leave out what keeps its KV cache beside a trainer that needs the memory, and splits whose trainer has too few
    GPUs.

    Raises:
        ConfigError: when none of this recipe's rows is left.
    """
    memory_bytes, asked = 1e9 * scenario.accelerator.memory_gb, scenario.gpu_memory_utilization
    trainer, notes = trainer_memory(scenario, gpus=scenario.num_gpus), []
    kept = [one for one in candidates if _trainer_alone_fits(scenario, one, memory_bytes)]
    if splits := [one.system.name for one in candidates if one not in kept]:
        notes.append(f"left out: {'; '.join(splits)}: the trainer does not fit on so few GPUs")
    if trainer.engine_share(memory_bytes, keeps_kv=False) <= 0:
        notes.append(
            f"the trainer does not fit: {_parts(trainer)} of each GPU's {scenario.accelerator.memory_gb:g} GB; use "
            f"more GPUs, or actor.strategy=fsdp2 with {FSDP}offload_policy=True"
        )
    limit = trainer.engine_share(memory_bytes, keeps_kv=True)
    if asked > limit and any(map(_keeps_kv, kept)):
        most = f"set at most {limit:.2f}" if limit > 0 else "use more GPUs"
        why = (
            f"{RolloutStrategy.PARTIAL_STALE_KV} keeps the KV cache while the trainer runs, which takes "
            f"{_parts(trainer)} of each GPU's {scenario.accelerator.memory_gb:g} GB; {most}"
        )
        kept = [one for one in kept if not _keeps_kv(one)]
        if not any(not one.is_baseline for one in kept):
            raise ConfigError("gpu_memory_utilization", asked, f"{why}, or add another of strategies")
        notes.append(f"left out: {RolloutStrategy.PARTIAL_STALE_KV}: gpu_memory_utilization={asked:g}: {why}")
    beside = replace(trainer, offloads_weights=False, offloads_optimizer=False)
    needs_offload = asked > beside.engine_share(memory_bytes, keeps_kv=False)
    return Fit(candidates=kept, notes=tuple(notes), overrides=OFFLOADS if needs_offload else ())


def trainer_memory(scenario: Scenario, *, gpus: int) -> TrainerMemory:
    """Of a full fp32 training with FSDP, a micro batch of one longest trajectory, offloaded while engines generate."""
    model = scenario.model
    return TrainerMemory(
        parameters=model.parameters,
        shards=gpus,
        layers=model.layers,
        hidden=model.hidden,
        vocabulary=model.vocabulary,
        micro_batch_tok=scenario.prompt_len_tok + scenario.max_response_length,
        offloads_weights=True,
        offloads_optimizer=True,
    )


def _trainer_alone_fits(scenario: Scenario, candidate: Candidate, memory_bytes: float) -> bool:
    servers = candidate.system.habits.trainer_servers
    if not servers:
        return True  # on all GPUs: said once, and not a row's fault
    trainer = trainer_memory(scenario, gpus=servers * scenario.tensor_parallel_size)
    return trainer.engine_share(memory_bytes, keeps_kv=False) > 0


def _keeps_kv(candidate: Candidate) -> bool:
    return candidate.strategy == RolloutStrategy.PARTIAL_STALE_KV


def _parts(trainer: TrainerMemory) -> str:
    state, activations = trainer.state_bytes / 1e9, trainer.activation_bytes / 1e9
    return (
        f"about {state + activations:.0f} GB (weights, gradients and Adam {state:.0f}, a micro batch {activations:.0f})"
    )
