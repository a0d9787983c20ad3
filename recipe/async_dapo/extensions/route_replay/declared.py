"""Router replay under FSDP: the place where it plugs in."""

from ...config.extensions import Declared

DECLARED = Declared(training_worker="training_worker.ReplayingWorker")
