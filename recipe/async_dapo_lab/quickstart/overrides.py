"""Hydra overrides that fit verl, and this recipe, to two CPU cores and the quick start's task."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import task
from .model_and_data import Assets

PROMPTS_PER_STEP = 8
RESPONSES_PER_PROMPT = 8
LEARNING_RATE = 2e-4  # nearly solves the task in 60 steps; five times as much does in 20, and then few groups are valid
QUICK_STEPS, QUICK_LEARNING_RATE = 12, 1e-3  # learns nearly as much in less time
QUICK_VALIDATION = 128  # prompts

_MICRO_BATCH = RESPONSES_PER_PROMPT  # those of one prompt are about equally long: little padding
REQUESTS_IN_FLIGHT = 96
# The engine's process computes itself: a worker process of its own would have both wait for each other in busy loops.
_EXECUTOR = "async_dapo_cpu.executor.LocalExecutor"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    assets: Assets
    output: Path
    ray_folder: Path  # with a short path, see `RayFolder`
    steps: int
    seed: int
    engines: int = 1  # they share the requests in flight
    learning_rate: float = LEARNING_RATE


def verl_overrides(run: RunSettings) -> Iterator[str]:
    """What any of verl's own trainer modes needs here; benchmarks use it without the recipe as well."""
    yield from _cpu_machine(run)
    yield from run_overrides(run)
    yield from _actor(run)
    yield from _rollout(run)


def run_overrides(run: RunSettings) -> Iterator[str]:
    """Of a short run on any machine: GPUs, model and data, steps, folders.

    Ray's resources are logical: they have to suffice for verl's actors, not to exist. Accuracy is that of sampling at
    temperature 1, as in training.
    """
    yield "trainer.nnodes=1"
    yield f"trainer.n_gpus_per_node={run.engines}"
    yield f"ray_kwargs.ray_init.num_cpus={12 + 4 * run.engines}"
    yield "++ray_kwargs.ray_init.include_dashboard=False"
    yield f"++ray_kwargs.ray_init._temp_dir={quoted(run.ray_folder)}"
    yield f"actor_rollout_ref.model.path={quoted(run.assets.model)}"
    yield f"data.train_files={quoted(run.assets.train_file)}"
    yield f"data.val_files={quoted(run.assets.validation_file)}"
    yield f"data.seed={run.seed}"
    yield f"data.train_batch_size={PROMPTS_PER_STEP}"
    yield f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS_PER_STEP}"
    yield f"actor_rollout_ref.rollout.n={RESPONSES_PER_PROMPT}"
    yield "actor_rollout_ref.rollout.agent.num_workers=1"
    yield f"data.max_prompt_length={task.MAX_PROMPT_TOK}"
    yield f"data.max_response_length={run.assets.shape.max_response_tok}"
    yield f"reward.custom_reward_function.path={quoted(Path(task.__file__))}"
    yield "reward.custom_reward_function.name=compute_score"
    yield f"trainer.total_training_steps={run.steps}"
    yield "trainer.total_epochs=1000"
    yield "trainer.val_before_train=True"
    yield f"trainer.test_freq={max(QUICK_STEPS, run.steps // 2)}"
    yield "trainer.save_freq=-1"
    yield "trainer.resume_mode=disable"
    yield f"trainer.default_local_dir={quoted(run.output / 'checkpoints')}"
    yield f"hydra.run.dir={quoted(run.output / 'hydra')}"
    yield "trainer.logger=[console,file,tensorboard]"


def recipe_overrides(*, strategy: str, stop_rule: str | None) -> Iterator[str]:
    """This recipe's own options: the defaults, but for the strategy and a time limit."""
    yield "trainer.v1.trainer_mode=async_dapo"
    yield f"async_dapo.rollout_strategy={strategy}"
    yield f"async_dapo.stop_rule={stop_rule or 'null'}"
    yield "async_dapo.round_timeout_s=300"


def quick_overrides(given: Sequence[str]) -> Iterator[str]:
    """What the quick start does less of, whichever system trains. Of the user's own prompts it leaves out none."""
    if not any(one.lstrip("+").startswith("data.val_files=") for one in given):
        yield f"data.val_max_samples={QUICK_VALIDATION}"


def kept_overrides(output: Path, *, steps: int) -> Iterator[str]:
    """Where the quick start keeps its record, and its last two checkpoints, from which the same command goes on."""
    yield f"async_dapo.report_dir={quoted(output)}"
    yield f"trainer.save_freq={max(1, steps // 3)}"
    yield "trainer.max_actor_ckpt_to_keep=2"
    yield "trainer.resume_mode=auto"


def verl_sync_overrides() -> Iterator[str]:
    """verl's own sync mode with this recipe's filter and loss; it has no older versions to correct for."""
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    yield "trainer.v1.trainer_mode=sync"
    yield "algorithm.adv_estimator=grpo"
    yield f"{actor}.clip_ratio_low=0.2"
    yield f"{actor}.clip_ratio_high=0.28"
    yield f"{actor}.clip_ratio_c=10.0"
    yield f"{actor}.loss_agg_mode=token-mean"
    yield "++algorithm.filter_groups.enable=True"
    yield "++algorithm.filter_groups.metric=acc"
    yield f"++{rollout}.engine_kwargs.vllm.stream_interval=64"


def _cpu_machine(run: RunSettings) -> Iterator[str]:
    yield "trainer.device=cpu"
    yield f"++ray_kwargs.ray_init.num_gpus={run.engines}"
    yield "++ray_kwargs.ray_init.object_store_memory=500000000"
    yield "transfer_queue.backend.SimpleStorage.num_data_storage_units=1"
    yield "reward.num_workers=1"
    yield "data.dataloader_num_workers=0"


def _actor(run: RunSettings) -> Iterator[str]:
    """FSDP2 in fp32 throughout; FSDP1 and flash attention need a GPU."""
    actor = "actor_rollout_ref.actor"
    yield "actor_rollout_ref.model.use_remove_padding=False"
    yield "actor_rollout_ref.model.enable_gradient_checkpointing=False"
    yield "++actor_rollout_ref.model.override_config.attn_implementation=sdpa"
    yield f"{actor}.strategy=fsdp2"
    yield f"{actor}.fsdp_config.dtype=float32"
    yield f"++{actor}.fsdp_config.mixed_precision={{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}}"
    yield f"{actor}.fsdp_config.use_torch_compile=False"
    yield f"{actor}.use_torch_compile=False"
    yield f"{actor}.ppo_micro_batch_size_per_gpu={_MICRO_BATCH}"
    yield f"{actor}.optim.lr={run.learning_rate}"


def _rollout(run: RunSettings) -> Iterator[str]:
    rollout = "actor_rollout_ref.rollout"
    yield f"{rollout}.name=vllm"
    yield f"{rollout}.seed={run.seed}"
    yield f"{rollout}.dtype=float32"
    yield f"{rollout}.tensor_model_parallel_size=1"
    yield f"{rollout}.enforce_eager=True"
    yield f"{rollout}.free_cache_engine=False"
    yield f"++{rollout}.enable_sleep_mode=False"
    yield f"++{rollout}.engine_kwargs.vllm.distributed_executor_backend={_EXECUTOR}"
    yield f"{rollout}.gpu_memory_utilization=0.1"
    yield f"{rollout}.max_model_len={task.MAX_PROMPT_TOK + run.assets.shape.max_response_tok}"
    yield f"{rollout}.max_num_seqs={REQUESTS_IN_FLIGHT // run.engines}"
    yield f"{rollout}.max_num_batched_tokens=4096"
    yield f"{rollout}.log_prob_micro_batch_size_per_gpu={_MICRO_BATCH}"
    yield f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes=16"
    yield f"{rollout}.val_kwargs.do_sample=True"
    yield f"{rollout}.val_kwargs.temperature=1.0"


def quoted(path: Path) -> str:
    """A path may hold characters that Hydra's grammar gives a meaning."""
    return "'{}'".format(str(path).replace("'", r"\'"))


def host_kv_overrides(gib: float) -> Iterator[str]:
    """Of engines that sleep, on a CPU too, and whose KV stays in host memory."""
    rollout = "actor_rollout_ref.rollout"
    yield f"async_dapo.host_kv_gib={gib}"
    yield f"{rollout}.free_cache_engine=True"
    yield f"++{rollout}.enable_sleep_mode=True"
    # As on a GPU. On a CPU a block is longer than most answers, and only whole blocks are kept.
    yield f"++{rollout}.engine_kwargs.vllm.block_size=16"
