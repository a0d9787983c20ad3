"""Where the pixel values of a row are. TransferQueue's storage unpickles this, so it imports nothing heavy."""

from typing import Any


class StoredPixels:
    """A row's `multi_modal_inputs`: verl's engines ask for its items micro-batch by micro-batch.

    Args:
        key: the row that keeps them.
    """

    def __init__(self, key: str) -> None:
        self._key = key

    def __contains__(self, name: str) -> bool:
        return False  # verl asks for what only MiniCPM has

    def items(self) -> Any:
        from ..store import read_pixels

        return read_pixels(self._key).items()
