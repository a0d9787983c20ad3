"""What a vLLM engine's own figures become, step by step."""

from types import SimpleNamespace

import pytest
from vllm.v1.metrics.loggers import AggregateStatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from recipe.async_dapo.engines import load_meter
from recipe.async_dapo.engines.load_meter import LoadMeter
from recipe.async_dapo_lab import sampling_meter
from recipe.async_dapo_lab.report.samples import LoadSample
from recipe.async_dapo_lab.sampling_meter import SamplingMeter


def config(blocks: int = 100):
    return SimpleNamespace(
        cache_config=SimpleNamespace(num_gpu_blocks=blocks, block_size=16),
        scheduler_config=SimpleNamespace(max_num_seqs=64),
    )


def stats(running: int, usage: float, waiting: int = 0, held_back: int = 0) -> SchedulerStats:
    return SchedulerStats(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_skipped_waiting_reqs=held_back,
        kv_cache_usage=usage,
    )


def generated(tokens: int, preempted: int = 0) -> IterationStats:
    made = IterationStats()
    made.num_generation_tokens, made.num_preempted_reqs = tokens, preempted
    return made


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(load_meter, "time", SimpleNamespace(monotonic=lambda: now.now_s))
    return now


def test_given_layers_that_cache_differently_then_the_room_is_vllms_own_figure_of_each_rank(clock):
    options = config(blocks=600)
    options.cache_config.kv_cache_size_tokens = 1_000
    meter = LoadMeter(options, [0, 1])
    assert meter.load().kv_room_tok == 2_000
    meter.record(stats(1, 0.5), None)
    clock.now_s = 1.0
    meter.record(stats(0, 0.0), None)
    assert meter.load().kv_tok_s == 500


def test_given_steps_then_time_counts_with_what_ran_in_it(clock):
    meter = LoadMeter(config(), [0])
    for now_s, running, usage in ((0.0, 2, 0.1), (1.0, 4, 0.5), (3.0, 0, 0.0), (9.0, 1, 0.2)):
        clock.now_s = now_s
        meter.record(stats(running, usage), generated(10 * running, preempted=int(running == 4)))
    load = meter.load()
    assert (load.kv_room_tok, load.max_num_seqs) == (1600, 64)
    assert load.request_s == 2 * 1 + 4 * 2
    assert load.kv_tok_s == pytest.approx(1600 * (0.1 * 1 + 0.5 * 2))
    assert (load.kv_peak, load.preemptions, load.generated_tok) == (0.5, 1, 70)
    meter.reset()
    assert meter.load() == LoadMeter(config(), [0]).load()


def test_given_data_parallel_ranks_then_room_and_sequences_are_of_all_and_usage_is_each_ones_own(clock):
    meter = LoadMeter(config(blocks=200), [0, 1])
    for rank, usage in ((0, 0.5), (1, 1.0)):
        meter.record(stats(1, usage), None, engine_idx=rank)
    clock.now_s = 2.0
    for rank in (0, 1):
        meter.record(stats(0, 0.0), None, engine_idx=rank)
    load = meter.load()
    assert (load.kv_room_tok, load.max_num_seqs, load.kv_peak) == (3200, 128, 1.0)
    assert load.kv_tok_s == pytest.approx(2.0 * 1600 * (0.5 + 1.0))


def test_given_an_engine_then_the_meter_is_one_of_its_loggers_and_without_statistics_its_size_is_known():
    manager = SimpleNamespace(engine_indexes=[0], stat_loggers=[])
    meter = LoadMeter.attach(SimpleNamespace(vllm_config=config(), logger_manager=manager))
    assert manager.stat_loggers == [meter] and isinstance(meter, AggregateStatLoggerBase)
    silent = LoadMeter.attach(SimpleNamespace(vllm_config=config(), logger_manager=None))
    assert silent.load().kv_room_tok == 1600 and silent.load().kv_peak == 0


def test_samples_are_of_all_ranks_together_and_by_the_time_of_day(clock, monkeypatch):
    monkeypatch.setattr(sampling_meter, "time", SimpleNamespace(monotonic=lambda: clock.now_s, time=lambda: 5000.0))
    meter = SamplingMeter(config(), [0, 1])
    for now_s, rank, running, waiting, usage in ((1.0, 0, 2, 1, 0.25), (2.0, 1, 4, 0, 0.5), (3.0, 0, 1, 0, 0.125)):
        clock.now_s = now_s
        meter.record(stats(running, usage, waiting=waiting, held_back=2 * waiting), None, engine_idx=rank)
    load = meter.load_of_round()
    samples = [LoadSample(4998, 2, 3, 0.25), LoadSample(4999, 6, 3, 0.5), LoadSample(5000, 5, 0, 0.5)]
    assert load.samples.unpack() == samples and load.request_s == meter.load().request_s == 4
    assert (load + load).samples is load.samples and (load + load).request_s == 8
    meter.reset()
    assert meter.load_of_round().samples.unpack() == []
