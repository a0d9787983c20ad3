"""TensorBoard's layout."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from torch.utils.tensorboard import SummaryWriter

from recipe.async_dapo.training.tracking import LAYOUT, custom_scalars

from ..support.recorded_runs import recipe_step


def test_tensorboard_reads_twelve_charts_of_metrics_that_are_logged(tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path))
    writer.add_custom_scalars(custom_scalars())
    writer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    [written] = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(written.tensor_proto.string_val[0])
    charts = [chart for category in layout.category for chart in category.chart]
    assert len(charts) == 12 and {category.title for category in layout.category} == set(LAYOUT)
    tags = {tag for chart in charts for tag in chart.multiline.tag}
    elsewhere = {"async_dapo/concurrency/kv_peak", "async_dapo/staleness/max", "actor/grad_norm"}
    assert tags - elsewhere <= recipe_step(1).keys()
