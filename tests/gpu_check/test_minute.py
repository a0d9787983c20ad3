"""What the first minute says of what it has measured: a good engine passes, and each fault fails in its own part."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from recipe.async_dapo_lab.gpu_check import minute, training
from recipe.async_dapo_lab.gpu_check.minute import ENGINES, PARTS, MinuteSettings, measure
from recipe.async_dapo_lab.gpu_check.supervised import last_words
from recipe.async_dapo_lab.gpu_check.verdicts import Status
from recipe.async_dapo_lab.gpu_check.watch import LeastFree

from ..support import stands_for_a_minute

ANSWERS = [[[5, 6], [-0.5, -0.25]]] * 4
ASLEEP: dict[str, Any] = {"before": ANSWERS, "after": ANSWERS, "free_asleep_gb": 78.0, "total_gb": 80.0}
WEIGHTS: dict[str, Any] = {"before": ANSWERS, "scaled": [[[5, 7], [-0.5, -0.3]]] * 4, "restored": ANSWERS}
FULL: dict[str, Any] = {
    "preemptions": 25,
    "most_in_a_step": 3,
    "steps": 900,
    "step_ms": 9.5,
    "generated_tok": 6400,
    "wanted_tok": 6400,
}
GOOD: dict[str, Any] = {
    "start": {"second_runner": True, "async_scheduling": True, "kv_blocks": 4000},
    "asleep": ASLEEP,
    "weights": WEIGHTS,
    "abort": {
        "abort_s": 0.02,
        "within_s": 0.5,
        "requests": 64,
        "aborted": 64,
        "aborted_tok": 900,
        "log_probs_whole": True,
    },
    "end": {},
    **dict.fromkeys(("full", "host_kv", "host_kv_async", "mtp"), FULL),
    "fp8": ASLEEP | WEIGHTS,
}
LATE = {"preemptions": 198, "most_in_a_step": 18}
OTHER = {"after": [[[5, 9], [-0.5, -0.25]]] * 4}


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("asleep", {"free_asleep_gb": 60.0}),
        ("asleep", OTHER),
        ("asleep", {"after": [*ANSWERS[:3], [[5, 6], [-0.5, float("nan")]]]}),
        ("asleep", {"after": [*ANSWERS[:3], [[5, 6], [-0.5]]]}),
        ("asleep", {"before": [[[], []]] * 4, "after": [[[], []]] * 4}),
        ("weights", {"scaled": ANSWERS}),
        ("weights", {"restored": [[[5, 6], [-0.5, -0.26]]] * 4}),
        ("abort", {"log_probs_whole": False}),
        ("abort", {"abort_s": 3.0}),
        ("abort", {"aborted": 0, "aborted_tok": 25600}),
        *((part, LATE) for part in ("full", "host_kv", "mtp")),
        ("full", {"generated_tok": 6399}),
        ("full", {"preemptions": 0, "most_in_a_step": 0}),
        ("fp8", OTHER),
        ("fp8", {"scaled": ANSWERS}),
    ],
)
def test_each_fault_fails_in_its_own_part_and_says_what_to_do(part, change) -> None:
    assert not PARTS[part].judge(GOOD[part]).is_failure
    verdict = PARTS[part].judge(GOOD[part] | change)
    assert verdict.is_failure and verdict.remedy


def test_a_cache_that_the_recipe_never_fills_so_is_only_told() -> None:
    verdict = PARTS["host_kv_async"].judge(FULL | LATE)
    assert verdict.status is Status.PASS and "198 preemptions" in verdict.found


def run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    device: str = "cuda",
    extensions: Sequence[str] = ("drafts", "host_kv"),
    **does: str,
) -> dict[str, Any]:
    """Verdicts, by part, of a process that does as it is told; parts that it is not told of end well."""
    monkeypatch.setattr(minute, "MODULE", stands_for_a_minute.__name__)
    monkeypatch.setattr(minute, "declared", lambda: extensions)
    settings = MinuteSettings(model="a model", folder=str(folder), device=device)
    environment = stands_for_a_minute.environment(GOOD, does)
    measured = measure(tuple(ENGINES), settings, environment=environment, free=LeastFree("cpu"))
    return {key: verdict for key, verdict, _ in measured}


def test_given_a_good_machine_then_every_part_passes_and_has_a_finding_in_the_documents(tmp_path, monkeypatch) -> None:
    verdicts = run(tmp_path, monkeypatch)
    assert list(verdicts) == list(PARTS) and {one.status for one in verdicts.values()} == {Status.PASS}
    page = Path(__file__).parents[2].joinpath("docs", "gpu.md").read_text("utf-8")
    assert all(f"\n| {part.finding} |" in page for part in PARTS.values())


def test_what_needs_an_extension_that_this_copy_lacks_is_skipped_by_its_name(tmp_path, monkeypatch) -> None:
    verdicts = run(tmp_path, monkeypatch, extensions=("drafts",))
    skipped = {key: one.found for key, one in verdicts.items() if one.status is Status.SKIP}
    assert skipped.keys() == {"host_kv", "host_kv_async"}
    assert all(found == "needs extensions/host_kv, which is not in this copy" for found in skipped.values())
    assert {one.status for key, one in verdicts.items() if key not in skipped} == {Status.PASS}
    monkeypatch.setattr(training, "declared", lambda: ())
    needy = {case.name for case in (*training.CASES, *training.OF_TWO) if "not in this copy" in case.why_left_out()}
    assert needy == {"drafts", "experts", "images", "partial_stale_kv, host memory", "separate"}


@pytest.mark.parametrize("part", ["start", "weights", "host_kv", "mtp"])
def test_given_a_part_that_hangs_then_it_fails_at_its_limit_and_the_engines_behind_it_are_tried(
    tmp_path, monkeypatch, part
) -> None:
    monkeypatch.setitem(PARTS, part, stands_for_a_minute.with_limit(PARTS[part], limit_s=1.0))
    verdicts = run(tmp_path, monkeypatch, **{part: "hang"})
    assert verdicts[part].found == f"not done after 1 s (finding {PARTS[part].finding} of docs/gpu.md)"
    own = next(parts for parts in ENGINES.values() if part in parts)
    behind = own[own.index(part) + 1 :]
    assert list(verdicts) == list(PARTS)
    assert {key for key, verdict in verdicts.items() if verdict.status is not Status.PASS} == {part, *behind}
    assert all(verdicts[key].status is Status.SKIP for key in behind)


@pytest.mark.parametrize(("device", "does", "status"), [("cpu", "not_start", "SKIP"), ("cpu", "raise", "FAIL"),
                                                        ("cuda", "not_start", "FAIL")])  # fmt: skip
def test_an_engine_that_a_cpu_build_does_not_have_is_skipped_by_name_and_one_that_dies_is_not(
    tmp_path, monkeypatch, device, does, status
) -> None:
    verdict = run(tmp_path, monkeypatch, device=device, mtp=does)["mtp"]
    assert verdict.status == status and "AssertionError: num_output_placeholders" in verdict.found


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        (["ValueError: a", "(EngineCore pid=7) RuntimeError: Engine core initialization failed."], "ValueError: a"),
        (
            ["(EngineCore pid=7) AssertionError", "vllm.v1.engine.exceptions.EngineDeadError: see above"],
            "AssertionError",
        ),
        (["RuntimeError: Engine core initialization failed."], "RuntimeError: Engine core initialization failed."),
        (["all is well"], ""),
    ],
)
def test_the_last_words_of_a_log_are_the_cause_and_not_what_followed(tmp_path, lines, last) -> None:
    log = tmp_path / "a.log"
    log.write_text("\n".join(lines))
    assert last_words(log) == last


def test_given_a_process_that_ends_before_its_first_part_then_it_fails_with_how_it_ended(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(minute, "MODULE", "ensurepip")  # which does not know its argument
    settings = MinuteSettings(model="a model", folder=str(tmp_path))
    measured = measure(
        ("life",), settings, environment={"PATH": str(Path(sys.executable).parent)}, free=LeastFree("cpu")
    )
    [start, *others] = [verdict for _, verdict, _ in measured]
    assert start.is_failure and "exit code" in start.found
    assert {verdict.status for verdict in others} == {Status.SKIP}
