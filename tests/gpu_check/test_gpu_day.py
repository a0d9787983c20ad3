"""The quarter of an hour on one GPU: what is packed for it, and that no part takes the time of the next."""

import json
import os
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.defaults.settings import MEASURED
from benchmarks.gpu_day import compare, pack, read, run
from benchmarks.side_by_side.run import SYSTEMS
from recipe.async_dapo.check import main as check
from recipe.async_dapo_lab.gpu_check.assets import LARGE, make_model
from recipe.async_dapo_lab.gpu_check.speed import LONG_TOK, SHORT_TOK, cells, record_line
from recipe.async_dapo_lab.plan.costs import ServerConstants, step_cost
from recipe.async_dapo_lab.plan.hardware import find_accelerator
from recipe.async_dapo_lab.plan.model_size import shape_of
from recipe.async_dapo_lab.quickstart.overrides import RunSettings, run_overrides

from ..support import hanging, turn_taker

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


def unpack(part: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", UNPACK, part, folder], capture_output=True, text=True)


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
    for part in parts[:-1]:
        assert "still missing" in unpack(part, tmp_path / "site").stdout
        assert not (tmp_path / "site").exists()
    damaged = parts[-1].read_bytes()
    parts[-1].write_bytes(damaged[:-1] + bytes([damaged[-1] ^ 1]))
    assert unpack(parts[-1], tmp_path / "site").returncode != 0
    parts[-1].write_bytes(damaged)
    assert "unpacked into" in unpack(parts[-1], tmp_path / "site").stdout
    assert {name: (tmp_path / "site" / name).read_bytes() for name in code} == code


def lines(output: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (output / "parts.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_given_a_check_that_hangs_when_a_wave_runs_then_it_is_ended_and_the_systems_train_one_after_the_other(
    tmp_path, monkeypatch
):
    hangs = run.Part(name="hangs", module=hanging.__name__, arguments=())
    fails = replace(hangs, name="fails", module="ensurepip", brings={"none.json": "none.json"})
    systems = tuple(run.Part(name=name, module=turn_taker.__name__, arguments=()) for name in ("first", "second"))
    wave = run.Wave(limit_s=60.0, parts=(*systems, fails, hangs))
    monkeypatch.setattr(run, "WAVES", (wave, replace(wave, limit_s=2.0, parts=(hangs,)), wave))
    for name, value in (("COMPARE", turn_taker.__name__), ("START_S", 5.0), ("ENDING_S", 1.0)):
        monkeypatch.setattr(run, name, value)
    results = tmp_path / "results"
    options = ["--device", "cpu", "--minutes", "1", "--waves", "1", "2"]
    monkeypatch.setattr(sys, "argv", ["run", "--output", str(results), *options])
    monkeypatch.setattr(run, "SLOWER", {"cpu": 1.0})
    monkeypatch.chdir(run.ROOT)
    run.main()
    about, *parts = lines(results)
    assert about["part"] == "about" and "commit" in about
    assert [file.name for file in results.iterdir()] == ["parts.jsonl"]  # what parts leave beside results is elsewhere
    failed, hung, first, second, late = parts
    assert [part["part"] for part in parts] == ["fails", "hangs", "first", "second", "hangs"]
    assert "not done after" in str(hung["ended"]) and "not done after" in str(late["ended"])
    assert failed["ended"] != "well" and "--timeout-s" in str(failed["last_lines"])
    assert first["ended"] == second["ended"] == "well"
    had = [(tmp_path / "work" / name / "turn.had").read_text().split() for name in ("first", "second")]
    assert float(had[0][1]) <= float(had[1][0])


def write_speeds(file: Path, constants: ServerConstants) -> None:
    """What an engine with an 8B model's sizes would have shown on an H100 if it had these constants."""
    where = {"tensor_parallel_size": 1, "gpu_memory_utilization": 0.85, "longest_context_tok": 4096}
    cost = step_cost(shape_of(LARGE, name="8B"), find_accelerator("h100"), constants, **where)
    lines = []
    for cell in cells(kv_room_tok=cost.kv_room_tok, batches=(1, 8, 32), contexts_tok=(512, 4096)):
        step_s = cost.base_s + cost.per_request_s * cell.batch + cost.per_kv_token_s * cell.kv_tok
        prefill_s = cost.prefill_token_s * cell.context_tok + cost.prefill_token2_s * cell.context_tok**2
        short_s = cell.batch * prefill_s + SHORT_TOK * step_s
        lines.append(record_line(cell, short_s=short_s, long_s=short_s + (LONG_TOK - SHORT_TOK) * step_s))
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_given_results_when_read_then_they_are_kept_and_compared(tmp_path, monkeypatch, capsys):
    results = tmp_path / "results"
    results.mkdir()
    (results / "parts.jsonl").write_text('{"part": "partial", "ended": "well", "last_lines": ["much"]}\n')
    rows = [f"{read.OTHER!r},4.0".replace("'", '"'), "partial,3.0", "partial,2.0"]
    (results / "runs.csv").write_text("\n".join(["system,step_s", *rows]) + "\n")
    assumed = ServerConstants(
        bandwidth_share=0.6, step_overhead_ms=2.0, request_overhead_ms=0.03, prefill_flop_share=0.4
    )
    write_speeds(results / "calibration.jsonl", assumed)
    monkeypatch.setattr(sys, "argv", ["read", str(results), "--assets", str(tmp_path / "assets")])
    read.main()
    said = capsys.readouterr().out
    assert re.search(r"partial +2\.5 +0\.625", said) and "much" not in said
    kept = {file.name for file in results.iterdir()} | {MEASURED.name}
    assert {file.name for file in (tmp_path / "assets").iterdir()} == kept
    found = json.loads((tmp_path / "assets" / MEASURED.name).read_text())
    assert found == pytest.approx({name: getattr(assumed, name) for name in found}, rel=0.02) and len(found) == 4


OF_THIS_RECIPE = [(name, "0.6b") for name, row in SYSTEMS.items() if row.strategy and not row.own]


@pytest.mark.slow
@pytest.mark.parametrize(("system", "model"), [*OF_THIS_RECIPE, ("partial", "experts")])
def test_given_a_row_of_this_recipe_when_its_options_are_checked_then_nothing_is_refused(
    system, model, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(compare.MODELS, "0.6b", lambda folder: make_model(folder, seed=0))
    assets = compare.prepare(tmp_path, device="cuda", model=model)
    settings = RunSettings(assets=assets, output=tmp_path, ray_folder=tmp_path, steps=6, seed=0)
    _, *own = SYSTEMS[system].entry(1)
    machine = (*run_overrides(settings), *compare.gpu_overrides(system), *compare.task_overrides())
    assert check([*machine, *own, *compare.WITHOUT_VALIDATION]) == 0, capsys.readouterr().out
