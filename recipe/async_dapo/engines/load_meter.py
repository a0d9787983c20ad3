"""What a vLLM engine reports of itself with every step, summed up since the server was last opened."""

import time
from typing import Any, Protocol, Self

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import AggregateStatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from ..core.concurrency import EngineLoad


class Meter(Protocol):
    """Says what an engine reports, whatever the engine is."""

    def reset(self) -> None: ...
    def load(self) -> EngineLoad: ...
    def load_of_round(self) -> EngineLoad: ...


class LoadMeter(AggregateStatLoggerBase):
    """A stat logger of vLLM's: told the scheduler's figures after every step, of each data-parallel rank by itself.

    Needs `rollout.disable_log_stats=False`; without it the KV cache's size is all that is known.
    """

    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int]) -> None:
        cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
        ranks = max(1, len(engine_indexes))
        blocks_tok = (cache.num_gpu_blocks or 0) * cache.block_size  # vLLM's count of blocks is of all ranks together
        # Where layers differ, as in gpt-oss and Gemma, a token takes a block of each group of them: vLLM's own figure,
        # of one rank, knows that. Older versions have none.
        self._rank_room_tok = getattr(cache, "kv_cache_size_tokens", None) or blocks_tok / ranks
        self._kv_room_tok = int(self._rank_room_tok * ranks)
        self._max_num_seqs = scheduler.max_num_seqs * ranks
        self.reset()

    @classmethod
    def attach(cls, engine: Any) -> Self:
        """To a vLLM engine that has been made."""
        manager = engine.logger_manager
        meter = cls(engine.vllm_config, [0] if manager is None else manager.engine_indexes)
        if manager is not None:
            manager.stat_loggers.append(meter)
        return meter

    def reset(self) -> None:
        """Count from now on; requests that stayed in the engine go on with it."""
        self._kv_peak = self._kv_tok_s = self._request_s = 0.0
        self._preemptions = self._generated_tok = self._drafted_tok = self._accepted_tok = 0
        self._last: dict[int, tuple[float, int, float]] = {}  # rank -> (time, running requests, KV usage)

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        if iteration_stats is not None:
            self._preemptions += iteration_stats.num_preempted_reqs
            self._generated_tok += iteration_stats.num_generation_tokens
        if scheduler_stats is None:
            return
        if (drafts := scheduler_stats.spec_decoding_stats) is not None:
            self._drafted_tok += drafts.num_draft_tokens
            self._accepted_tok += drafts.num_accepted_tokens
        now_s = time.monotonic()
        self._pass_time(engine_idx, now_s)
        running, usage = scheduler_stats.num_running_reqs, scheduler_stats.kv_cache_usage
        self._last[engine_idx] = now_s, running, usage
        self._kv_peak = max(self._kv_peak, usage)

    def log_engine_initialized(self) -> None:
        pass

    def load(self) -> EngineLoad:
        return EngineLoad(
            kv_room_tok=self._kv_room_tok,
            max_num_seqs=self._max_num_seqs,
            kv_peak=self._kv_peak,
            kv_tok_s=self._kv_tok_s,
            preemptions=self._preemptions,
            generated_tok=self._generated_tok,
            drafted_tok=self._drafted_tok,
            accepted_tok=self._accepted_tok,
            request_s=self._request_s,
        )

    def load_of_round(self) -> EngineLoad:
        """As `load`, on the answer to a stop, where a subclass may say more."""
        return self.load()

    def _pass_time(self, rank: int, now_s: float) -> None:
        """Since the rank's last step it has been running what it had after it."""
        if rank not in self._last:
            return
        since_s, running, usage = self._last[rank]
        if running:
            self._request_s += running * (now_s - since_s)
            self._kv_tok_s += usage * self._rank_room_tok * (now_s - since_s)
