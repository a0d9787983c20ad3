"""What is said of an engine, by what its process has measured."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from recipe.async_dapo_lab.gpu_check.engine import BOUNDS, GB, JUDGES, EngineSettings, Section, judged, read_facts
from recipe.async_dapo_lab.gpu_check.supervised import last_words, run_supervised
from recipe.async_dapo_lab.gpu_check.verdicts import Status

EXACT = {"compared_tok": 800, "mean_diff": 0.008, "max_diff": 0.2}
WRONG = {"mean_diff": 0.4}
GOOD: dict[Section, dict[str, Any]] = {
    Section.START: {"kv_room_tok": 100_000, "async_scheduling": True, "second_runner": True},
    Section.GENERATE: {"requests": 256, "complete": 256, "tokens": 65_536, "generating_s": 4.0},
    Section.LOG_PROBS: EXACT,
    Section.ABORT: {
        "abort_s": 0.05,
        "aborted_reason": "abort",
        "aborted_tok": 7,
        "kept_log_probs": 7,
        "other_tok": 256,
        "wanted_tok": 256,
    },
    Section.KEEP: {
        "pause_s": 0.02,
        "resume_s": 0.01,
        "before_tok": 40,
        "meanwhile_tok": 0,
        "complete": 4,
        "requests": 4,
        "of_two_versions": 4,
        **EXACT,
    },
    Section.PREFIX_CACHE: {
        "same_version_tok": 48,
        "next_version_tok": 0,
        "was_reset": True,
        "after_reset_tok": 0,
        "reset_s": 0.01,
    },
    Section.DRAFTS: {
        "tokens": 65_536,
        "generating_s": 2.0,
        "drafted_tok": 60_000,
        "accepted_tok": 49_152,
        "plain_tokens_per_s": 16_384,
        **EXACT,
    },
    Section.SLEEP_1: {"sleep_s": 1.0, "wake_s": 0.5, "freed_bytes": 30 * GB, "leaked_bytes": 0.0, **EXACT},
    Section.SLEEP_2: {"sleep_s": 0.5, "wake_s": 0.5, "freed_bytes": 31 * GB, "leaked_bytes": 0.1 * GB, **EXACT},
    Section.WEIGHTS: {
        "bytes": 16 * GB,
        "tensors": 500,
        "send_s": 2.0,
        "verls_s": 1.9,
        "way": "CUDA IPC",
        "refusal": "expected weights of policy version 4",
        "old_mean_diff": 0.6,
        **EXACT,
    },
}


def verdicts(facts: dict, ended: str = "") -> dict:
    return dict(judged(facts, ended, sections=list(GOOD), bounds=BOUNDS["bfloat16"]))


def test_given_a_good_engine_when_judged_then_every_section_passes_and_says_its_figures() -> None:
    all_verdicts = verdicts(GOOD)
    assert set(JUDGES) == set(GOOD) == set(all_verdicts)
    assert {verdict.status for verdict in all_verdicts.values()} == {Status.PASS}
    assert "16,384 tokens/s" in all_verdicts[Section.GENERATE].found
    assert "CUDA IPC: 2.00 s, 8.00 GB/s" in all_verdicts[Section.WEIGHTS].found
    assert "4.00 tokens a step" in all_verdicts[Section.DRAFTS].found
    assert "2.00 x the plain engine's" in all_verdicts[Section.DRAFTS].found
    assert "second model runner" in all_verdicts[Section.START].found


@pytest.mark.parametrize(
    ("section", "broken", "found"),
    [
        (Section.START, {"kv_room_tok": 0}, "no room for a KV cache"),
        (Section.GENERATE, {"complete": 250}, "6 of 256 requests"),
        (Section.LOG_PROBS, WRONG, "mean 0.4 (limit 0.03)"),
        (Section.LOG_PROBS, {"max_diff": 2.0}, "most 2 (limit 1)"),
        (Section.LOG_PROBS, {"mean_diff": math.nan}, "mean nan (limit 0.03)"),
        (Section.ABORT, {"aborted_reason": "length", "aborted_tok": 256}, "ended by `length`"),
        (Section.ABORT, {"kept_log_probs": 0}, "lack their log-probs"),
        (Section.ABORT, {"other_tok": 7}, "another request"),
        (Section.ABORT, {"abort_s": 9.0}, "took 9.0 s"),
        (Section.KEEP, {"meanwhile_tok": 3}, "3 tokens came during the pause"),
        (Section.KEEP, {"complete": 2}, "2 ended"),
        (Section.KEEP, {"of_two_versions": 0}, "0 with tokens of both versions"),
        (Section.KEEP, WRONG, "mean 0.4"),
        (Section.KEEP, {"pause_s": 60.0}, "took 60.0 s"),
        (Section.PREFIX_CACHE, {"same_version_tok": 0}, "not found again"),
        (Section.PREFIX_CACHE, {"next_version_tok": 16}, "16 tokens of older weights"),
        (Section.PREFIX_CACHE, {"after_reset_tok": 16}, "cannot be reset"),
        (Section.DRAFTS, {"accepted_tok": 0}, "none was accepted"),
        (Section.DRAFTS, WRONG, "drafted tokens have other probabilities"),
        (Section.SLEEP_1, {"freed_bytes": 0.0}, "0.0 GB freed"),
        (Section.SLEEP_1, {"leaked_bytes": 2 * GB}, "+2.00 GB"),
        (Section.SLEEP_2, WRONG, "other probabilities after it"),
        (Section.SLEEP_2, {"mean_diff": math.nan, "max_diff": math.nan}, "other probabilities after it"),
        (Section.WEIGHTS, WRONG, "other weights than were sent"),
        (Section.WEIGHTS, {"old_mean_diff": 0.008}, "may have its old weights"),
        (Section.WEIGHTS, {"refusal": ""}, "another version were taken"),
    ],
)
def test_given_a_broken_engine_when_judged_then_its_section_fails_with_a_remedy(
    section: Section, broken: dict[str, Any], found: str
) -> None:
    all_verdicts = verdicts({**GOOD, section: GOOD[section] | broken})
    assert [name for name, verdict in all_verdicts.items() if verdict.is_failure] == [section]
    assert found in all_verdicts[section].found and all_verdicts[section].remedy


def test_given_an_engine_that_dies_when_judged_then_that_section_fails_and_later_ones_are_skipped() -> None:
    until = {section: GOOD[section] for section in (Section.START, Section.GENERATE)}
    all_verdicts = verdicts(until, "CUDA error: out of memory; its log: engine.log")
    statuses = [verdict.status for verdict in all_verdicts.values()]
    assert statuses == [Status.PASS] * 2 + [Status.FAIL] + [Status.SKIP] * (len(GOOD) - 3)
    assert "out of memory" in all_verdicts[Section.LOG_PROBS].found


def test_given_settings_when_written_and_read_then_they_are_the_same(tmp_path: Path) -> None:
    settings = EngineSettings(
        model="m",
        device="cpu",
        dtype="float32",
        attention="sdpa",
        facts=str(tmp_path / "facts.jsonl"),
        sockets="/tmp",
        sections=(Section.GENERATE,),
        requests=1,
        compared=1,
        prompt_tok=1,
        response_tok=1,
        max_model_len=2,
        max_num_seqs=1,
        bucket_mb=1,
        ballast_bytes=1,
        engine_kwargs={"kv_cache_dtype": "fp8"},
    )
    settings.write(tmp_path / "settings.json")
    read = EngineSettings.read(tmp_path / "settings.json")
    assert read.engine_kwargs == settings.engine_kwargs and tuple(read.sections) == settings.sections


def test_given_facts_of_sections_when_read_then_they_are_by_name(tmp_path: Path) -> None:
    file = tmp_path / "facts.jsonl"
    assert read_facts(file) == {}
    file.write_text('{"section": "start", "seconds": 1.5}\n')
    assert read_facts(file) == {"start": {"seconds": 1.5}}


def run(program: str, tmp_path: Path, timeout_s: float = 60.0) -> str:
    command = [sys.executable, "-c", program]
    return run_supervised(command, environment={}, log=tmp_path / "a.log", timeout_s=timeout_s)


def test_given_a_process_when_it_ends_then_its_last_error_is_told(tmp_path: Path) -> None:
    assert run("print('fine')", tmp_path) == ""
    assert run("print(1); raise RuntimeError('no kernel image')", tmp_path).startswith("RuntimeError: no kernel image")
    assert run("import os; os._exit(7)", tmp_path).startswith("exit code 7")
    assert run("import threading; threading.Event().wait()", tmp_path, timeout_s=0.5).startswith("not done after")


def test_given_a_log_of_vllm_when_it_has_an_error_then_the_prefix_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("(EngineCore pid=7) INFO 1\n(EngineCore pid=7) ValueError: no room\n(EngineCore pid=7) bye\n")
    assert last_words(log) == "ValueError: no room"
    assert last_words(tmp_path / "none.log") == ""
