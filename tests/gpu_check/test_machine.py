"""What the first hour on GPUs says of a machine: good ones pass, each broken one fails with its remedy."""

from dataclasses import replace
from pathlib import Path

import pytest

from recipe.async_dapo.runtime import verl_version
from recipe.async_dapo_lab.gpu_check import machine
from recipe.async_dapo_lab.gpu_check.machine import GB, Gpu, judge_files, judge_gpus, look, room
from recipe.async_dapo_lab.gpu_check.verdicts import Status, Verdict

GPU = Gpu(name="NVIDIA H100 80GB HBM3", memory_bytes=80 * GB, free_bytes=79 * GB, capability=(9, 0))
SHARED_GPU = replace(GPU, free_bytes=30 * GB)
OLD_GPU = replace(GPU, name="Tesla V100", capability=(7, 0))


def assert_fails(verdict: Verdict, found: str, remedy: str) -> None:
    assert verdict.is_failure and found in verdict.found and remedy in verdict.remedy


def test_given_enough_when_judged_then_it_passes_and_says_what_is_there() -> None:
    assert judge_gpus((GPU, GPU), "", wanted=2).found == "2 x NVIDIA H100 80GB HBM3, 80 GB"
    assert room(64 * GB, 8, "in /dev/shm", "more").found == "64.0 GB in /dev/shm"
    assert judge_files(8192, 8192).status is judge_files(-1, 8192).status is Status.PASS


@pytest.mark.parametrize(
    ("gpus", "error", "found", "remedy"),
    [
        ((), "RuntimeError: Found no NVIDIA driver on your system", "Found no NVIDIA driver", "--device cpu"),
        ((GPU,), "", "1 of 2 GPUs are visible", "--gpus"),
        ((GPU, SHARED_GPU), "", "GPU 1 has 30 of 80 GB free", "nvidia-smi"),
        ((OLD_GPU, GPU), "", "compute capability 7.0", "8.0"),
    ],
)
def test_given_other_gpus_when_judged_then_they_fail_with_what_to_do(gpus, error, found, remedy) -> None:
    assert_fails(judge_gpus(gpus, error, wanted=2), found, remedy)


def test_given_too_little_when_judged_then_it_fails_with_what_to_do() -> None:
    assert_fails(room(64e6, 8, "in /dev/shm", "--shm-size"), "0.1 GB in /dev/shm", "needs 8 GB: --shm-size")
    assert_fails(judge_files(1024, 8192), "1024 open files", "ulimit -n 8192")


@pytest.mark.parametrize(
    ("said", "error", "found"),
    [
        ("", "RuntimeError: CUDA error: invalid resource handle", "invalid resource handle"),
        ("other values\n", "", "other"),
    ],
)
def test_given_memory_that_another_process_cannot_read_then_it_fails_as_no_other_way_is_there(said, error, found):
    assert_fails(machine.judge_ipc(said, error), found, "CUDA IPC alone")
    assert machine.judge_ipc("shared\n", "").status is Status.PASS


def test_given_a_cpu_when_looked_at_then_what_needs_a_gpu_is_skipped(tmp_path: Path) -> None:
    verdicts = look("cpu", gpus=1, output=tmp_path)
    skipped = {name for name, verdict in verdicts.items() if verdict.status is Status.SKIP}
    assert skipped == {"GPUs", "flash attention", "CUDA IPC"} and "verl==0.9.1" in verdicts["versions"].found
    assert list(tmp_path.iterdir()) == []


def test_given_another_verl_when_looked_at_then_the_error_names_the_command(tmp_path: Path, monkeypatch) -> None:
    required = tmp_path / "REQUIRED_VERL.txt"
    required.write_text("verl==0.8.0\n")
    monkeypatch.setattr(verl_version, "REQUIRED_VERL_FILE", required)
    assert_fails(machine._versions(), "pip install 'verl==0.8.0'", "install the versions")


def test_given_no_flash_attention_or_one_for_another_torch_when_looked_at_then_it_says_how_to_install_it(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert_fails(machine._flash_attention(), "not installed", "flash-attn==2.8.3")
    assert "use_fused_kernels=True" in machine._flash_attention().remedy
    monkeypatch.setattr(machine, "find_spec", lambda name: name == "kernels" or None)
    assert "use_fused_kernels=True" in machine._flash_attention().found
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    package = tmp_path / "flash_attn"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('undefined symbol: _ZN3c105ErrorC2E')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert_fails(machine._flash_attention(), "ImportError: undefined symbol", "build it for this torch")
