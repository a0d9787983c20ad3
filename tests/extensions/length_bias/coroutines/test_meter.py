"""The meter in whole runs on virtual time: its metrics, and a restart."""

import pytest

from recipe.async_dapo.config.values import RolloutStrategy
from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.stop_rules import StopRuleName
from recipe.async_dapo.extensions.length_bias.declared import DECLARED
from recipe.async_dapo.extensions.length_bias.meter import LengthBias
from recipe.async_dapo.record.checkpoint_folder import DamagedCheckpoint
from recipe.async_dapo.record.keys import LENGTH_RATIO, PREFIX
from recipe.async_dapo.training.checkpoints import to_bytes

from ....support.simulated_cluster import Cluster, resumed
from ....support.simulated_options import options
from ....support.simulated_worker import random_task

METER = ("length_bias",)


def meter_of(cluster: Cluster) -> LengthBias:
    meter = cluster.buffer.observers["length_bias"]
    assert isinstance(meter, LengthBias)
    return meter


def test_given_a_restart_when_steps_go_on_then_the_window_does_and_all_metrics_are_those_declared(start) -> None:
    cluster = start(options(rollout_strategy=RolloutStrategy.PARTIAL, extensions=METER), task=random_task(0))
    metrics = cluster.steps(3)[-1]
    own = {PREFIX + name for name in DECLARED.metrics}
    assert own <= metrics.keys() and all(metrics[name] > 0 for name in own)
    again = resumed(start, cluster)
    assert meter_of(again).window.state() == meter_of(cluster).window.state() != ()
    again.step()


@pytest.mark.parametrize(("rule", "is_biased"), [(StopRuleName.FIRST_COMPLETED, True), (StopRuleName.FIFO, False)])
def test_given_discard_then_only_a_rule_that_prefers_short_answers_trains_shorter_ones(start, rule, is_biased) -> None:
    """Of what `fifo` throws away whatever its length the meter takes no notice."""
    opts = options(rollout_strategy=RolloutStrategy.DISCARD, stop_rule=rule, extensions=METER)
    ratio = start(opts, task=random_task(0)).steps(8)[-1][LENGTH_RATIO]
    assert (ratio < 0.97) is is_biased, ratio


def test_what_a_checkpoint_keeps_has_this_form_and_other_bytes_are_refused() -> None:
    """What fails here is another form: raise `FORMAT` of `record/checkpoint_folder.py`."""
    meter, again = LengthBias(options()), LengthBias(options())
    meter.window.observe([GroupOutcome(prompt_uid="a", verdict=Verdict.VALID, response_lens_tok=(2, 2))], [])
    two = b"\xcb@" + bytes(7)
    assert (
        meter.state() == b"\x91\x84\xa3uid\xa1a\xablongest_tok" + two + b"\xa9ended_tok" + two + b"\xaais_trained\xc2"
    )
    again.restore(meter.state())
    assert again.window.state() == meter.window.state()
    for other in (b"", b"\x81", to_bytes({}), to_bytes([{"uid": "a"}])):
        with pytest.raises(DamagedCheckpoint):
            meter.restore(other)
