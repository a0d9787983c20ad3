"""The metric of drafts."""

from types import SimpleNamespace
from typing import Any

import pytest

from recipe.async_dapo.core.concurrency import EngineLoad
from recipe.async_dapo.core.staleness import VersionShares
from recipe.async_dapo.extensions.drafts.meter import DraftMeter

from ....support.simulated_options import options

PLAIN = EngineLoad(kv_room_tok=1, max_num_seqs=1, generated_tok=30)
DRAFTED = EngineLoad(kv_room_tok=1, max_num_seqs=1, generated_tok=30, drafted_tok=40, accepted_tok=20)


@pytest.mark.parametrize(
    ("loads", "metrics"),
    [
        ([], {}),
        ([PLAIN], {}),
        ([DRAFTED], {"drafts/tok_per_step": 3.0}),
        ([DRAFTED, PLAIN], {"drafts/tok_per_step": 1.5}),  # 60 tokens in 40 steps of a response
    ],
)
def test_a_step_of_a_response_yields_a_token_and_what_is_accepted(loads: list[EngineLoad], metrics) -> None:
    record: Any = SimpleNamespace(balancer=SimpleNamespace(loads=dict(enumerate(loads))))
    assert DraftMeter(options()).closed(record, VersionShares()) == metrics
