"""Where the pixel values of a row are. TransferQueue's storage unpickles this, so it imports nothing heavy."""

from typing import Any

PIXELS = "pixels"  # field of a group's pixel values; empty but in one of its rows


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
        from ...store import read_object

        return read_object(self._key, PIXELS).items()
