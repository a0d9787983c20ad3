"""verl's worker of one model, with router replay if it trains one with FSDP."""

from typing import Any

from verl.workers.engine_workers import TrainingWorker

from .route_replay import RouteReplay

_FSDP = ("fsdp2", "fsdp")  # verl's other training engines have a router replay


class ReplayingWorker(TrainingWorker):
    """A reference policy that is a model of its own gets no loss of verl: it sends tokens where its own routers do."""

    _replays = False

    def set_loss_fn(self, loss_fn: Any) -> None:
        super().set_loss_fn(loss_fn)
        if self.engine_config.strategy in _FSDP and not self._replays:
            self._replays = True
            RouteReplay(self.engine)
