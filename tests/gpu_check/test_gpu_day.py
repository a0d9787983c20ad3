"""The quarter of an hour on one GPU: what is packed for it, and that no part takes the time of the next."""

import asyncio
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from benchmarks.faults.victims import title_of
from benchmarks.gpu_day import compare, pack, read, run
from benchmarks.gpu_day.drawn_lengths import DrawnLengths
from benchmarks.side_by_side.run import SYSTEMS
from recipe.async_dapo.check import main as check
from recipe.async_dapo_lab.gpu_check.__main__ import parse
from recipe.async_dapo_lab.gpu_check.assets import prepare

from ..support import hanging

UNPACK = Path(pack.__file__).with_name("unpack.sh")
IMAGE_HEADER = struct.Struct("<HHIQ12xI32x")  # kind, version, its own size, the image's size, architecture
IMAGES = st.lists(
    st.tuples(
        st.sampled_from((pack.PTX, pack.CUBIN)),
        st.sampled_from((75, 80, 90, 100, 120)),
        st.binary(min_size=1, max_size=9),
    ),
    min_size=1,
    max_size=4,
)


def fat_binary(images: list[tuple[int, int, bytes]]) -> bytes:
    inner = b"".join(
        IMAGE_HEADER.pack(kind, 257, IMAGE_HEADER.size, len(code), architecture) + code
        for kind, architecture, code in images
    )
    return pack.FATBIN_MAGIC + struct.pack("<Q", len(inner)) + inner


@given(st.lists(IMAGES, max_size=3), st.binary(max_size=9))
def test_given_any_library_when_pruned_then_a_hopper_gpu_finds_in_each_fat_binary_what_it_would_load(binaries, between):
    library = between.join([b"ELF", *map(fat_binary, binaries), b"end"])
    pruned = pack.prune(library)
    assert len(pruned) == len(library)
    for before, after in zip(pack.images(library), pack.images(pruned), strict=True):
        assert before == after  # headers stay
        has_own = (pack.CUBIN, pack.HOPPER) in {(kind, architecture) for kind, architecture, *_ in before}
        for kind, architecture, start, size in before:
            can_load = kind == pack.CUBIN and architecture == pack.HOPPER
            can_compile = kind == pack.PTX and architecture <= pack.HOPPER
            kept = library[start : start + size] if (can_load if has_own else can_compile) else bytes(size)
            assert pruned[start : start + size] == kept
    outside = bytearray(library), bytearray(pruned)
    for *_, start, size in (image for images in pack.images(library) for image in images):
        for each in outside:
            each[start : start + size] = bytes(size)
    assert outside[0] == outside[1]


def unpack(part: Path, folder: Path, *, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    own = os.environ | {"PYTHON": python}
    return subprocess.run(["bash", UNPACK, part, folder], env=own, capture_output=True, text=True)


def test_given_parts_when_unpacked_one_by_one_then_the_last_one_brings_all_files_and_a_damaged_one_is_refused(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(pack, "PART_BYTES", 4096)
    packages = tmp_path / "packages"
    (packages / "vllm").mkdir(parents=True)
    code = {"vllm/__init__.py": b"", "vllm/kernels.so": os.urandom(10_000)}
    for name, content in code.items():
        (packages / name).write_bytes(content)
    parts = pack.archive(packages, tmp_path)
    assert len(parts) > 2
    (tmp_path / "site.parts").mkdir()
    (tmp_path / "site.parts" / parts[-1].name).write_bytes(b"left by another pack")
    assert "false has no torch: name the machine's Python" in unpack(parts[0], tmp_path / "site", python="false").stderr
    for part in parts[:-1]:
        assert "still missing" in unpack(part, tmp_path / "site").stdout
        assert not (tmp_path / "site").exists()
    damaged = parts[-1].read_bytes()
    parts[-1].write_bytes(damaged[:-1] + bytes([damaged[-1] ^ 1]))
    assert unpack(parts[-1], tmp_path / "site").returncode != 0
    parts[-1].write_bytes(damaged)
    assert "unpacked into" in unpack(parts[-1], tmp_path / "site").stdout
    assert {name: (tmp_path / "site" / name).read_bytes() for name in code} == code


@pytest.mark.slow
def test_given_parts_that_hang_or_fail_when_run_then_they_are_ended_and_the_next_ones_run_and_all_are_told(
    tmp_path, monkeypatch
):
    hangs = run.Part(name="hangs", command=(hanging.__name__,), planned_s=5.0, limit_s=5.0)
    fails = replace(hangs, name="fails", command=("ensurepip",), limit_s=60.0, brings={"none.json": "none.json"})
    monkeypatch.setattr(run, "PARTS", (hangs, fails, hangs, replace(hangs, limit_s=1.0)))
    for name, value in (("ENDING_S", 1.0), ("LEAST_S", 2.0), ("SLOWER", {"cpu": 1.0})):
        monkeypatch.setattr(run, name, value)
    results = tmp_path / "results"
    (tmp_path / "work" / "fails").mkdir(parents=True)
    (tmp_path / "work" / "fails" / "none.json").write_text("left by an earlier run, and no result of this one")
    options = ["--device", "cpu", "--minutes", "1", "--parts", "1", "2", "4"]
    monkeypatch.setattr(sys, "argv", ["run", "--output", str(results), *options])
    run.main()
    lines = [json.loads(line) for line in (results / "parts.jsonl").read_text().splitlines()]
    assert [line["left"] for line in lines if "left" in line] == [[], []]
    about, hung, failed, late = [line for line in lines if "part" in line]
    assert hung["least_free_gb"]["host"] > 0
    assert about["device"] == "cpu" and "commit" in about
    # What parts leave beside results is elsewhere.
    assert {file.name for file in results.iterdir()} == {"parts.jsonl", "parts.jsonl.lock"}
    assert [part["part"] for part in (hung, failed, late)] == ["hangs", "fails", "hangs"]
    assert hung["ended"].startswith("not done after 4 s") and "not begun" in late["ended"]
    assert failed["ended"] != "well" and "--timeout-s" in str(failed["last_lines"])
    assert not any(hanging.__name__ in title_of(process) for process in psutil.Process().children(recursive=True))


@pytest.mark.slow
def test_given_parts_that_run_at_the_same_time_when_ended_then_each_has_a_line_and_nothing_of_them_is_left(tmp_path):
    """The day's own, which find no GPU here, and are told so soon."""
    numbers = [str(1 + index) for index, part in enumerate(run.PARTS) if part.name in ("pressure", "stale")]
    command = [sys.executable, "-m", run.__name__, "--output", str(tmp_path / "results"), "--minutes", "5"]
    done = subprocess.run([*command, "--parts", *numbers], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "results" / "parts.jsonl").read_text().splitlines()]
    ended = {line["part"]: line["ended"] for line in lines if "seconds" in line}
    assert ended.keys() == {"pressure", "stale"} and "well" not in ended.values()
    assert [line["left"] for line in lines if "left" in line] == [[], []]


def test_the_day_fits_its_quarter_of_an_hour_and_every_part_of_the_check_is_one_of_its_own():
    planned = [max(part.planned_s for part in slot) for slot in run.slots(run.PARTS[: run.FIRST_DAY])]
    assert run.SETUP_S + sum(planned) + run.RESERVE_S <= run.DAY_S
    assert run.PARTS[0].command[1:] == ("--minute", "life", "step")
    assert all(part.planned_s < part.limit_s for part in run.PARTS)
    for part in run.PARTS:
        if "gpu_check" in part.command[0]:
            parse([*part.command[1:], "--device", "cpu"])  # ends this with the wrong argument otherwise
    beside = [part for slot in run.slots(run.PARTS) if len(slot) > 1 for part in slot]
    assert beside and all(part.command[0].endswith("gpu_check") for part in beside)  # compared systems run alone
    assert all("--beside" in part.command for part in beside)
    assert len({part.name for part in run.PARTS}) == len(run.PARTS)


def test_given_a_trajectory_when_its_loop_runs_again_then_its_answer_has_the_same_length(monkeypatch):
    asked = []

    async def run_once(self: object, sampling_params: dict[str, Any], **kwargs: Any) -> None:
        asked.append(sampling_params["max_tokens"])

    monkeypatch.setattr(SingleTurnAgentLoop, "run", run_once)
    loop = DrawnLengths.__new__(DrawnLengths)
    loop.response_length = 2048
    for session_id in (*range(400), *range(400)):
        asyncio.run(loop.run({}, raw_prompt=[{"role": "user", "content": "2+2"}], session_id=session_id))
    assert asked[:400] == asked[400:]
    median, longest = np.percentile(asked, (50, 99))
    assert 200 < median < 320 and 6 < longest / median <= 9


CHECKS = [
    {"theme": "1. machine", "check": "ulimits", "status": "PASS", "found": "8192 open files"},
    {"theme": "2. training", "check": "images", "status": "FAIL", "found": "2 of 3 steps"},
]


def test_given_results_when_read_then_they_are_kept_and_compared(tmp_path, monkeypatch, capsys):
    results = tmp_path / "results"
    results.mkdir()
    (results / "parts.jsonl").write_text('{"part": "partial", "ended": "well", "last_lines": ["much"]}\n')
    rows = [f"{read.OTHER!r},4.0".replace("'", '"'), "partial,3.0", "partial,2.0"]
    (results / "runs.csv").write_text("\n".join(["system,step_s", *rows]) + "\n")
    (results / "gpu_check_smoke.json").write_text(json.dumps({"checks": CHECKS}))
    shutil.copy(read.ASSETS / "calibration.jsonl", results)
    monkeypatch.setattr(sys, "argv", ["read", str(results), "--assets", str(tmp_path / "assets")])
    read.main()
    said = capsys.readouterr().out
    assert re.search(r"partial +2\.5 +0\.625", said) and "much" not in said
    assert "8 points" in said and "FAIL images: 2 of 3 steps" in said and "open files" not in said
    assert {file.name for file in (tmp_path / "assets").iterdir()} == {file.name for file in results.iterdir()}


OF_THIS_RECIPE = [name for name, row in SYSTEMS.items() if row.strategy and not row.own]


@pytest.mark.slow
@pytest.mark.parametrize("system", OF_THIS_RECIPE)
def test_given_a_row_of_this_recipe_when_its_options_are_checked_then_nothing_is_refused(system, tmp_path, capsys):
    assets = prepare(tmp_path, device="cuda")
    places = {"assets": assets, "output": tmp_path, "ray_folder": tmp_path}
    assert check([*compare.options(system, "cuda", **places)]) == 0, capsys.readouterr().out
