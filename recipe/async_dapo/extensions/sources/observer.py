"""The account of each source as metrics of the steps, and in checkpoints."""

from collections import Counter

from transfer_queue import KVBatchMeta

from ...config.options import AsyncDAPOConfig
from ...core.staleness import VersionShares
from ...record import keys
from ...rollout.manager import RoundRecord
from ...training.checkpoints import from_bytes, to_bytes
from ...training.observer import Observer
from .accounts import Accounts, AccountsState


class SourceObserver(Accounts, Observer):
    """Says nothing of a run whose prompts are all of one source: its account is the ledger."""

    def __init__(self, options: AsyncDAPOConfig) -> None:
        super().__init__()

    def batch_made(self, step: int, record: RoundRecord, batch: KVBatchMeta) -> None:
        groups: dict[str, Counter[int]] = {}
        for key, tag in zip(batch.keys, batch.tags, strict=True):
            tokens = groups.setdefault(key.split("_")[0], Counter())
            for version, num_tokens in tag["segments"]:
                tokens[step - 1 - version] += num_tokens
        self.note_batch(groups)

    def closed(self, record: RoundRecord, versions: VersionShares) -> dict[str, float]:
        sources = self.take()
        if len(sources) < 2:
            return {}
        area = keys.SOURCE.removeprefix(keys.PREFIX)
        return {f"{area}{name}/{metric}": value for name, own in sources.items() for metric, value in own.items()}

    def state(self) -> bytes:
        return to_bytes(self.accounts())

    def restore(self, state: bytes) -> None:
        self.go_on(from_bytes(AccountsState, state))
