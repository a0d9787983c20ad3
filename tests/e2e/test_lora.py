"""An adapter trains on the real stack, on a mix of data sets: engines get it with every version, and a checkpoint has
it and the accounts of the sources.
"""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from recipe.async_dapo.record.keys import FRESH_K3_KL, K3_KL, LEDGER, LEDGER_TERMS, SOURCE
from recipe.async_dapo_lab.quickstart.overrides import PROMPTS_PER_STEP
from recipe.async_dapo_lab.report.write import write_report

from ..support.harness import Run, ledger_closes, train

pytestmark = pytest.mark.nightly

STEPS, SAVED_STEP = 5, 3
K3_NATS = 1e-9  # float32
SHARES = {"a/few": 1, "many": 3}


def mixed(train_file: Path, folder: Path) -> Path:
    """The quick start's data as those of two sources."""
    rows = pq.read_table(train_file)
    names = ["many" if row["index"] % 4 else "a/few" for row in rows["extra_info"].to_pylist()]
    place = rows.column_names.index("data_source")
    pq.write_table(rows.set_column(place, "data_source", [names]), folder / "mixed.parquet")
    return folder / "mixed.parquet"


@pytest.fixture(scope="module")
def run(assets, tmp_path_factory) -> Run:
    overrides = (
        "actor_rollout_ref.model.lora_rank=8",
        "async_dapo.max_tokens_per_round=24",  # so that many trajectories are interrupted
        f"async_dapo.max_staleness={STEPS}",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        f"trainer.save_freq={SAVED_STEP}",
        "trainer.resume_mode=auto",
        f"async_dapo.sources={{{', '.join(f'{name}: {share}' for name, share in SHARES.items())}}}",
    )
    folder = tmp_path_factory.mktemp("lora")
    overrides += (f"data.train_files={mixed(assets.train_file, folder)}", f"async_dapo.report_dir={folder}/record")
    train(assets, folder, steps=STEPS, strategy="partial", overrides=overrides, kill_at=SAVED_STEP + 1)
    return train(assets, folder, steps=STEPS, strategy="partial", overrides=overrides)


def test_given_an_adapter_when_it_trains_then_engines_sample_from_it_also_after_a_resume(run):
    assert [record["step"] for record in run.inspections][-1] == STEPS and all(map(ledger_closes, run.steps))
    k3s = [step[FRESH_K3_KL] for step in run.steps if FRESH_K3_KL in step]  # a step may train on older tokens alone
    assert k3s and max(map(abs, k3s)) < K3_NATS, k3s
    assert max(run.metric("async_dapo/partial/resumed_groups")) > 0
    assert max(run.metric(K3_KL)) > 100 * K3_NATS, "the adapter has not changed"


def test_given_shares_by_source_when_the_run_is_killed_then_accounts_go_on_as_if_it_had_not_been(run):
    assert len(run.steps) == STEPS
    for number, step in enumerate(run.steps, 1):
        quarter = PROMPTS_PER_STEP // 4
        assert {name: step[f"{SOURCE}{name}/trained"] for name in SHARES} == {
            name: number * share * quarter for name, share in SHARES.items()
        }
        for term in ("drawn", "filtered", "failed", "retired"):
            assert sum(step[f"{SOURCE}{name}/{term}"] for name in SHARES) == step[LEDGER + term], term
        held = sum(step[LEDGER + term] for term in LEDGER_TERMS[5:])
        assert sum(step[f"{SOURCE}{name}/waiting"] for name in SHARES) == held
    page = write_report([run.folder / "record"]).read_text()
    assert "Where the groups of each source went" in page and "<tr><th>a/few</th>" in page
