"""A rehearsal of a GPU run, on this machine: real code on eight emulated engines.

Nightly: every run of the tests rehearses in `test_faults.py`, and has the command in `tests/cpu/test_rehearsal.py`.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from ..support.composed_runs import rows, write_parquet
from ..support.harness import ledger_closes, temporary_folder_of
from ..support.rehearsed import ROOT, command_of, rehearse
from ..support.signals import as_in_the_foreground

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rehearse(tmp_path_factory.mktemp("rehearsal") / "run")


def test_given_a_gpu_configuration_when_rehearsed_then_it_trains_and_says_how_fast_it_would_be(folder) -> None:
    document = json.loads((folder / "rehearsal.json").read_text())
    assert [step["step"] for step in document["steps"]] == [1, 2, 3]
    for step in document["steps"]:
        assert 0 < step["bound_share"] <= 1.2
        assert 0 <= step["idle"] < 1 and step["step_s"] > step["rollout_s"] > 0
    lines = [json.loads(line)["data"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(ledger_closes(step) and step["async_dapo/ledger/failed"] == 0 for step in lines)
    assert lines[-1]["response_length/max"] <= 4096
    assert sum(step["async_dapo/mixture/scored_trajectories"] for step in lines) > 0, "no group mixed versions"


def test_given_a_rehearsal_then_its_checkpoint_is_there_and_no_process_is(folder) -> None:
    checkpoint = folder / "checkpoints" / "global_step_3"
    assert (checkpoint / "actor").is_dir() and list(checkpoint.glob("async_dapo_pool*"))
    left = [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(process.info["cmdline"] or [])
    ]
    assert not left


def test_given_ctrl_c_while_it_trains_then_no_process_and_no_file_of_it_is_left(tmp_path) -> None:
    with tempfile.TemporaryDirectory(prefix="r") as folder:  # short: sockets
        process = subprocess.Popen(
            command_of(tmp_path / "run", "rehearsal.steps=100"),
            cwd=ROOT,
            env={**os.environ, "TMPDIR": folder},
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=as_in_the_foreground,
        )
        while not (metrics := tmp_path / "run" / "metrics.jsonl").exists() or not metrics.read_text():
            assert process.poll() is None
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 130 and output.endswith("interrupted; everything it started has been ended\n")
        assert not [one for one in psutil.process_iter() if temporary_folder_of(one).startswith(folder)]
        assert not list(Path(folder).iterdir())


FEWER = (  # prompts and answers than the script has; all else is its own
    "data.train_batch_size=32",
    "actor_rollout_ref.rollout.n=4",
    "rehearsal.steps=3",
    "rehearsal.warmup=1",
    "rehearsal.speedup=20",
)


def test_given_the_reference_script_when_rehearsed_on_a_stand_in_then_it_trains_until_step_3(tmp_path) -> None:
    write_parquet(tmp_path / "dapo-math-17k.parquet", rows(8))
    write_parquet(tmp_path / "aime-2024.parquet", rows(8))
    bin_folder = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "test_qwen3_8b.sh", "rehearsal.stand_in=True", *FEWER, f"rehearsal.output={tmp_path}/run"],
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "REHEARSE": "1",
            "DATA_HOME": str(tmp_path),
            "CKPTS_DIR": str(tmp_path / "checkpoints"),
        },
        capture_output=True,
        text=True,
        timeout=2400,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    document = json.loads((tmp_path / "run" / "rehearsal.json").read_text())
    assert [step["step"] for step in document["steps"]] == [1, 2, 3] and document["num_gpus"] == 8
    lines = [json.loads(line)["data"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(step["async_dapo/round/trained_groups"] == 32 for step in lines if "timing_s/step" in step)
