"""The job on which verl publishes its asynchronous modes, simulated: rows of `runs.csv`.

verl's page on its V1 asynchronous trainer (16 September 2026; `published.csv` has its address) says model, engines of 4
GPUs, Megatron's TP2 PP2 CP2, B=64 in four mini-batches, 32K, seconds and tokens of 150 steps, and nodes of 8 H100 for
its second experiment. By its tokens a second n is 8, and a prompt 155 tokens. Assumed: the same nodes for the first
one, log-normal lengths whose mean is that of the page, and the planner's engines. verl's separate_async is a closed
study (benchmarks/README.md): the file keeps its rows.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.defaults.run import COLOCATE, DEFAULT, EQUAL_SHARE, equal_share, measure, ours
from benchmarks.defaults.settings import Setting
from benchmarks.support.runs_file import RunsFile
from recipe.async_dapo_lab.plan.candidates import Candidate, baseline, with_drafts
from recipe.async_dapo_lab.plan.systems import verl_colocate_async, verl_sync

MODEL, GROUPS = "qwen3.5-35b-a3b", 64
JOB = Setting(
    servers=8, gpus=4, accelerator="h100", groups=GROUPS, n=8, limit_tok=32_768, median_tok=10_000, model=MODEL
)
FIXED: dict[str, Any] = {"prompt_len_tok": 155, "updates": 4, "gpus_per_rank": 8}
PUBLISHED, FILTERED, ENGINE_2025 = "as published", "60 % valid", "engines of 2025"
DRAFTED = "default, drafts"
# Accepted and drafted tokens of a request and step: by suffix decoding, and by the model's own head.
DRAFTS = {DRAFTED: (0.6, 1.5), "default, mtp, 1.0 accepted": (1.0, 2.0), "default, mtp, 2.3 accepted": (2.3, 3.0)}
CASES: dict[str, dict[str, Any]] = {
    PUBLISHED: {"valid_share": 1.0},
    FILTERED: {"valid_share": 0.6},
    ENGINE_2025: {"valid_share": 1.0, "engine": "published-2025"},
}


def candidates() -> Iterator[Candidate]:
    yield baseline(verl_sync(groups=GROUPS))
    yield baseline(verl_colocate_async(groups=GROUPS))
    yield ours(DEFAULT)
    for drafted in map(ours, DRAFTS):
        yield replace(drafted, system=with_drafts(drafted.system))


def row(case: str, candidate: Candidate) -> dict[str, Any]:
    drafts = {}
    if candidate.system.name in DRAFTS:
        accepted, drafted = DRAFTS[candidate.system.name]
        drafts = {"drafts_accepted": accepted, "drafts_accepted_ratio": accepted / drafted}
    return measure(JOB, "", candidate, **FIXED, **CASES[case], **drafts)


def row_at_share(case: str, share: float) -> dict[str, Any]:
    def at(cap: float | None) -> dict[str, Any]:
        return row(case, ours(EQUAL_SHARE, max_partial_share=cap)) | {"cap": cap or ""}

    return equal_share(at, share=share)


def run(path: Path) -> None:
    """Simulate what the file does not have yet."""
    file = RunsFile(path)
    for case in CASES:
        for candidate in candidates():
            file.measure({"case": case, "system": candidate.system.name}, partial(row, case, candidate))
        share = float(file.row(case=case, system=COLOCATE)["off_policy"])
        file.measure({"case": case, "system": EQUAL_SHARE}, partial(row_at_share, case, share))
