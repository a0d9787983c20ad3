"""The simulator has no scheduler of its own: it runs the classes that production runs."""

import subprocess
import sys

import pytest

from recipe.async_dapo.core import concurrency, leases, over_sampling, pool, round, staleness, stop_rules
from recipe.async_dapo_lab.plan import group_simulation
from recipe.async_dapo_lab.plan.systems import recipe

from ..support.plan_settings import simulate, small_scenario

POOL = {"rollout_strategy": "partial", "max_partial_share": 0.5}
SEAMS = [
    (round.Round, "take"),
    (round.Round, "note"),
    (round.Round, "report"),
    (round.Round, "close"),
    (leases.LeaseTable, "request"),
    (leases.LeaseTable, "release"),
    (concurrency.ConcurrencyController, "end_round"),
    (over_sampling.RoundSize, "most_unfinished"),
    (pool.PromptPool, "dispatch"),
    (pool.PromptPool, "settle"),
    (pool.PromptPool, "check_ledger"),
    (over_sampling.OverSampling, "observe"),
    (staleness.StalenessLimit, "must_finish"),
    (stop_rules.CompletionOrder, "on_end"),
    (group_simulation, "judge_group"),
]


def test_given_a_simulated_run_then_production_makes_every_decision(monkeypatch):
    calls = set()
    for owner, name in SEAMS:
        original, seam = getattr(owner, name), (owner, name)
        spied = lambda *args, _it=(seam, original), **kwargs: (calls.add(_it[0]), _it[1](*args, **kwargs))[1]  # noqa: E731
        monkeypatch.setattr(owner, name, spied)
    simulate(small_scenario(), recipe("pool", **POOL), steps=3)
    assert calls == set(SEAMS)


@pytest.mark.slow
def test_given_no_ray_verl_or_torch_then_the_plan_still_runs():
    program = (
        "import sys\n"
        "for name in ('ray', 'verl', 'torch', 'transfer_queue', 'vllm', 'tensordict', 'matplotlib', 'pandas'):\n"
        "    sys.modules[name] = None\n"
        "from recipe.async_dapo_lab.plan.__main__ import main\n"
        "sys.exit(main('--train-batch-size 4 --rollout-n 2 --max-response-length 512 --length-median-tok 100 '\n"
        "    '--servers 1 --steps 1 --warmup 0 --jobs 1 --strategies partial'.split()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Recommended" in done.stdout or "No setting" in done.stdout
