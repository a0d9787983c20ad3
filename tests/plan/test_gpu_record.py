"""A record made on a GPU gives the planner back what the GPU does."""

import json

import pytest

from recipe.async_dapo_lab.gpu_check.speed import LONG_TOK, SHORT_TOK, Cell, cells, record_line
from recipe.async_dapo_lab.plan.calibration import calibrate
from recipe.async_dapo_lab.plan.costs import StepCost

COST = StepCost(
    base_s=0.0094,
    per_request_s=1.2e-4,
    per_kv_token_s=4e-8,
    prefill_token_s=1e-4,
    prefill_token2_s=0.0,
    kv_room_tok=670_000,
)


def generate_s(cell: Cell, tokens: int) -> float:
    """Prefill, start and decoding of a cell, as a GPU would do it."""
    prefill_s = cell.batch * COST.prefill_s(cell.context_tok)
    return 0.5 + prefill_s + COST.decode_s(tokens, cell.batch, cell.batch * cell.context_tok)


def test_given_a_record_when_it_is_fitted_then_the_decode_step_is_the_gpus(tmp_path) -> None:
    recorded = list(cells(kv_room_tok=COST.kv_room_tok))
    assert len(recorded) > 12 and max(cell.kv_tok for cell in recorded) <= COST.kv_room_tok
    record = tmp_path / "record.jsonl"
    lines = [
        record_line(cell, short_s=generate_s(cell, SHORT_TOK), long_s=generate_s(cell, LONG_TOK)) for cell in recorded
    ]
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    measured = calibrate(str(record), num_servers=8)
    assert measured.base_s == pytest.approx(COST.base_s, rel=0.02)
    assert measured.per_request_s == pytest.approx(COST.per_request_s, rel=0.02)
    assert measured.per_kv_token_s == pytest.approx(COST.per_kv_token_s, rel=0.02)
    assert measured.apply(COST).prefill_s(512) == COST.prefill_s(512), "it says nothing about prefills"
