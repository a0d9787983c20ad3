"""Lengths of the last groups, as metrics of each step."""

from ...config.options import AsyncDAPOConfig
from ...core.staleness import VersionShares
from ...rollout.manager import RoundRecord
from ...training.checkpoints import from_bytes, to_bytes
from ...training.observer import Observer
from .window import LengthBiasWindow, ObservedLengths, mean_tok, quantile_tok

# Groups over which trained and dispatched lengths are compared: several steps, so that one of them says little.
SIZE = 2048


class LengthBias(Observer):
    def __init__(self, options: AsyncDAPOConfig) -> None:
        # What is drawn again whatever its length says nothing of a preference.
        self._sees_interrupted = not options.draws_again
        self.window = LengthBiasWindow(SIZE)

    def ended(self, record: RoundRecord) -> None:
        self.window.observe(record.summary.outcomes, record.workers.unfinished if self._sees_interrupted else ())

    def closed(self, record: RoundRecord, versions: VersionShares) -> dict[str, float]:
        self.window.mark_trained(record.summary.trained_uids)
        dispatched = self.window.dispatched
        trained_tok, dispatched_tok = mean_tok(self.window.trained), mean_tok(dispatched)
        return {
            "length/trained/mean": trained_tok,
            "length/dispatched/mean": dispatched_tok,
            "length/dispatched/p50": quantile_tok(dispatched, 0.5),
            "length/dispatched/p90": quantile_tok(dispatched, 0.9),
            "length/trained_to_dispatched": trained_tok / dispatched_tok if dispatched_tok else 0.0,
        }

    def state(self) -> bytes:
        return to_bytes(self.window.state())

    def restore(self, state: bytes) -> None:
        self.window.restore(from_bytes(tuple[ObservedLengths, ...], state))
