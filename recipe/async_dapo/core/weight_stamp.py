"""What a weight transfer says of itself, so that an engine can tell whose weights it was given."""

import json
from dataclasses import asdict, dataclass
from typing import Self


class WeightsMismatch(RuntimeError):
    """An engine was given other weights than those of its run and policy version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightStamp:
    """`run`: Ray session and job. `checksum`: of all names, shapes and types, and of some of the values."""

    run: str
    version: int | None
    checksum: str

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(**json.loads(data))

    def __str__(self) -> str:
        return f"policy version {self.version} of run {self.run}, checksum {self.checksum}"


def check_stamp(engine: str, *, expected: WeightStamp, found: WeightStamp | None) -> None:
    """Compare what an engine should have been given with what came with the weights.

    Raises:
        WeightsMismatch: naming the engine, what was expected and what was found.
    """
    if found != expected:
        raise WeightsMismatch(f"{engine}: expected weights of {expected}; found {found or 'weights without a stamp'}")
