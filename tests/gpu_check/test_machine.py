"""What the first hour on GPUs says of a machine: good ones pass, each broken one fails with its remedy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recipe.async_dapo.runtime import verl_version
from recipe.async_dapo_lab.gpu_check import machine
from recipe.async_dapo_lab.gpu_check.machine import GB, Gpu, Machine, judgements, probe
from recipe.async_dapo_lab.gpu_check.verdicts import Status

GPU = Gpu(name="NVIDIA H100 80GB HBM3", memory_bytes=80 * GB, free_bytes=79 * GB, capability=(9, 0))
GOOD = Machine(
    device="cuda",
    versions="verl==0.9.1, vllm==0.24.0, transfer_queue==0.1.11",
    versions_error="",
    torch="2.11.0",
    torch_cuda="13.0",
    driver="580.95.05",
    gpus=(GPU, GPU),
    gpu_error="",
    flash_attention="flash-attn 2.8.3",
    flash_attention_error="",
    memory_bytes=500 * GB,
    disk_bytes=1000 * GB,
    shared_memory_bytes=64 * GB,
    open_files=1_048_576,
)
SHARED_GPU = replace(GPU, free_bytes=30 * GB)
OLD_GPU = replace(GPU, name="Tesla V100", capability=(7, 0))


def test_given_a_good_machine_when_judged_then_every_check_passes() -> None:
    verdicts = judgements(GOOD, gpus=2)
    assert {verdict.status for verdict in verdicts.values()} == {Status.PASS}
    assert "2 x NVIDIA H100 80GB HBM3, 80 GB" in verdicts["GPUs"].found


@pytest.mark.parametrize(
    ("check", "broken", "found", "remedy"),
    [
        ("versions", {"versions_error": "verl=0.8.0: this recipe needs verl==0.9.1"}, "0.8.0", "install the versions"),
        ("driver and CUDA", {"driver": ""}, "nvidia-smi does not run", "--device cpu"),
        ("driver and CUDA", {"torch_cuda": ""}, "without CUDA", "verl[vllm]==0.9.1"),
        ("driver and CUDA", {"gpu_error": "system not yet initialized"}, "finds no GPU", "CUDA_VISIBLE_DEVICES"),
        ("GPUs", {"gpus": (GPU,)}, "1 of 2 GPUs are visible", "--gpus"),
        ("GPUs", {"gpus": (GPU, SHARED_GPU)}, "GPU 1 has 30 of 80 GB free", "nvidia-smi"),
        ("GPUs", {"gpus": (OLD_GPU, GPU)}, "compute capability 7.0", "8.0"),
        ("flash attention", {"flash_attention": ""}, "not installed", "flash-attn==2.8.3"),
        (
            "flash attention",
            {"flash_attention_error": "undefined symbol"},
            "undefined symbol",
            "build it for this torch",
        ),
        ("host memory", {"memory_bytes": 8 * GB}, "8.0 GB", "32 GB"),
        ("disk", {"disk_bytes": GB}, "1.0 GB", "--output"),
        ("shared memory", {"shared_memory_bytes": 64e6}, "0.1 GB in /dev/shm", "--shm-size"),
        ("ulimits", {"open_files": 1024}, "1024 open files", "ulimit -n 8192"),
    ],
)
def test_given_a_broken_machine_when_judged_then_the_check_fails_with_what_to_do(
    check: str, broken: dict[str, Any], found: str, remedy: str
) -> None:
    verdict = judgements(replace(GOOD, **broken), gpus=2)[check]
    assert verdict.status is Status.FAIL
    assert found in verdict.found and remedy in verdict.remedy


def test_given_a_cpu_when_judged_then_what_needs_a_gpu_is_skipped_and_limits_are_lower() -> None:
    small = replace(GOOD, device="cpu", driver="", gpus=(), memory_bytes=9 * GB, shared_memory_bytes=2 * GB)
    verdicts = {name: verdict.status for name, verdict in judgements(small, gpus=1).items()}
    skipped = {name for name, status in verdicts.items() if status is Status.SKIP}
    assert skipped == {"driver and CUDA", "GPUs", "flash attention"}
    assert set(verdicts.values()) == {Status.SKIP, Status.PASS}


def test_given_this_machine_when_looked_at_then_what_is_found_is_what_it_has(tmp_path: Path) -> None:
    seen = probe("cpu", output=tmp_path)
    assert "verl==0.9.1" in seen.versions and not seen.versions_error
    assert seen.torch.startswith("2.") and min(seen.memory_bytes, seen.disk_bytes, seen.open_files) > 0
    assert list(tmp_path.iterdir()) == []


def test_given_another_verl_when_looked_at_then_the_error_names_the_command(tmp_path: Path, monkeypatch) -> None:
    required = tmp_path / "REQUIRED_VERL.txt"
    required.write_text("verl==0.8.0\n")
    monkeypatch.setattr(verl_version, "REQUIRED_VERL_FILE", required)
    versions, error = machine._versions()
    assert not versions and "pip install 'verl==0.8.0'" in error


def test_given_flash_attention_for_another_torch_when_looked_at_then_its_error_is_told(tmp_path, monkeypatch) -> None:
    package = tmp_path / "flash_attn"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('undefined symbol: _ZN3c105ErrorC2E')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert machine._flash_attention() == ("", "ImportError: undefined symbol: _ZN3c105ErrorC2E")


def test_given_a_driver_when_looked_at_then_its_version_is_found(tmp_path: Path, monkeypatch) -> None:
    stub = tmp_path / "nvidia-smi"
    stub.write_text("#!/bin/sh\necho 580.95.05\necho 580.95.05\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine._nvidia_smi() == "580.95.05"
    stub.write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    assert machine._nvidia_smi() == ""


def test_given_a_process_that_hangs_when_asked_then_the_answer_says_so(monkeypatch) -> None:
    monkeypatch.setattr(machine, "_IMPORT_S", 0.2)
    assert machine._python("import threading; threading.Event().wait()") == (
        "",
        "not done after 0 s",
    )
