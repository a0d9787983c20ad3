"""What a check leaves behind is named: processes, and shared memory that none has open; others' are not."""

import os
import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from recipe.async_dapo_lab.gpu_check import watch
from recipe.async_dapo_lab.gpu_check.watch import MARK, LeastFree, Leftovers

BUSY = [sys.executable, "-c", "input()"]


def test_given_a_process_and_a_segment_that_outlive_a_check_then_both_are_named_until_they_go(monkeypatch) -> None:
    monkeypatch.setattr(watch, "GRACE_S", 0.0)
    mark = f"a check of {os.getpid()}"
    left = Leftovers("cpu", mark=mark)
    segment = SharedMemory(create=True, size=64)
    name = f"/dev/shm/{segment.name}"
    try:
        with subprocess.Popen(BUSY, env=os.environ | {MARK: mark}, stdin=subprocess.PIPE) as process:
            verdict = left.judge()
            assert verdict.is_failure and f"process {process.pid} " in verdict.found
            assert name not in verdict.found  # this process has it open, and may close it itself
            process.communicate(b"\n")
        segment.close()
        assert name in left.judge().found
    finally:
        segment.unlink()
    assert not any(name in one or f"process {process.pid} " in one for one in left.now())


NVIDIA_SMI = """#!/bin/sh
case "$1" in *compute-apps*) cat {apps};; *) cat {free};; esac
"""


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A `nvidia-smi` that says what two files hold."""
    files = {"apps": tmp_path / "apps", "free": tmp_path / "free"}
    for file in files.values():
        file.write_text("")
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI.format(**files))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(watch, "_EVERY_S", 0.0)
    return files


def test_given_gpus_then_the_least_free_memory_of_each_is_kept_and_what_cannot_be_read_is_left_out(gpus) -> None:
    least = LeastFree("cuda")
    for said in ("0, 1000\n1, 5000\n", "0, 4000\n1, 3000\n", "0, [N/A]\n"):
        gpus["free"].write_text(said)
        least.look()
    assert least.gb == {"GPU 0": pytest.approx(1.049, abs=0.001), "GPU 1": pytest.approx(3.146, abs=0.001)}


def test_given_processes_on_a_gpu_then_those_of_before_are_not_named(gpus) -> None:
    gpus["apps"].write_text("17, another job\n")
    left = Leftovers("cuda", mark="none has this")
    gpus["apps"].write_text("17, another job\n18, VLLM::EngineCore\n")
    assert [line for line in left.now() if "GPU" in line] == ["on a GPU: 18, VLLM::EngineCore"]
