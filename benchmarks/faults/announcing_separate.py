"""The trainer of the fault matrix with engines on GPUs of their own."""

from collections.abc import Sequence

import ray

from recipe.async_dapo.extensions.separate.engines import SeparateEngines
from recipe.async_dapo.extensions.separate.trainer import RollingReplayBuffer, SeparateTrainer

from .announcing import Announcing, NotingReplayBuffer, announce
from .cells import Moment


class NotingRollingBuffer(NotingReplayBuffer, RollingReplayBuffer):
    """Notes the same of a round that has no end."""


class StruckEngines(SeparateEngines):
    """Engines of their own that announce an update before the trainer's ranks are asked for its weights."""

    announces = False

    def _leave_weights(self, version: int) -> Sequence[ray.ObjectRef]:
        if self.announces:
            announce(Moment.UPDATE, waits=True)
        return super()._leave_weights(version)


class StruckSeparate(Announcing, SeparateTrainer):
    """On vLLM, with engines on GPUs of their own."""

    _engines_class = StruckEngines
    _buffer_class = NotingRollingBuffer

    def _announce_update(self) -> None:
        """Not in a step whose checkpoint has just stopped the engines."""
        assert isinstance(self._engines, StruckEngines)
        self._engines.announces = self.global_steps % self.config.trainer.save_freq > 0

    def _save_checkpoint(self) -> None:
        self.replay_buffer.end_round()  # what is under way is noted as held
        super()._save_checkpoint()
