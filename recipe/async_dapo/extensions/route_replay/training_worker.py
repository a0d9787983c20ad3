"""verl's worker of one model, with router replay if it trains one with FSDP."""

from verl.workers.engine_workers import TrainingWorker

from .route_replay import RouteReplay

_FSDP = ("fsdp2", "fsdp")  # verl's other training engines have a router replay


class ReplayingWorker(TrainingWorker):
    """A reference policy sends tokens where its own routers do."""

    def reset(self) -> None:
        super().reset()
        if self.engine_config.strategy in _FSDP and not self.engine_config.forward_only:
            RouteReplay(self.engine)
