"""Which share of the machine a rehearsal says it has used."""

import os
from types import SimpleNamespace

import pytest

from recipe.async_dapo_lab.rehearsal import report

TRAINER = {"pid": 7, "create_time": lambda: 1.0}


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("150000 100000\n", 1.5), ("max 100000\n", 4.0), ("800000 100000\n", 4.0), (None, 4.0)],
    ids=["quota", "no quota", "quota above the affinity", "no container"],
)
def test_the_cores_are_those_that_affinity_and_container_leave(tmp_path, monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 4, 6})
    monkeypatch.setattr(report, "QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        report.QUOTA.write_text(quota)
    assert report.usable_cores() == cores


def test_the_share_is_of_the_time_up_to_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"s": 100.0, "used_s": 5.0}
    trainer = SimpleNamespace(**TRAINER, cpu_times=lambda: SimpleNamespace(user=now["used_s"], system=0.0))
    monkeypatch.setattr("psutil.Process", lambda: SimpleNamespace(children=lambda recursive: [trainer]))
    monkeypatch.setattr("time.monotonic", lambda: now["s"])
    monkeypatch.setattr(report, "usable_cores", lambda: 2.0)
    meter = report.CpuMeter()
    meter.begin()
    now.update(s=110.0, used_s=15.0)
    meter.begin()  # with each further step
    meter.look()
    now["s"] = 150.0  # the run ends, and is cleared up
    assert meter.share == 0.5
