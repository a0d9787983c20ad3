"""What a reward function returns, as plain data. Imports the standard library only: a reward process does it, too."""

from collections.abc import Mapping
from typing import Any

from ..core.users_errors import MOST_CHARS

MAX_DEPTH = 32  # of what a reward function returns; below it there is text
INT64 = range(-(2**63), 2**63)


def plain_reward(value: Any, depth: int = 0) -> Any:
    """The value as None, numbers, text, lists and dicts with text as keys: what every process can unpickle, what a
    checkpoint can hold and what verl can write as JSON. Numbers of any kind, such as numpy's, torch's, Decimal and
    Fraction, become Python's. Anything else becomes text.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    try:
        if isinstance(value, bytes | bytearray):
            return value.decode(errors="replace")
        if depth < MAX_DEPTH:
            if isinstance(value, Mapping):
                return {_text(str(key)): plain_reward(item, depth + 1) for key, item in value.items()}
            if isinstance(value, list | tuple | set | frozenset):
                return [plain_reward(item, depth + 1) for item in value]
            if hasattr(value, "tolist"):  # arrays, tensors, and numpy's numbers
                content = value.tolist()  # of numpy's longest float it is that itself
                return float(value) if type(content) is type(value) else plain_reward(content, depth + 1)
            return int(value) if isinstance(value, int) and value in INT64 else float(value)
    except Exception:  # of the value's own code: it is no number
        pass
    try:
        return f"{value!r:.{MOST_CHARS}}"
    except Exception:
        return f"<{type(value).__module__}.{type(value).__qualname__}>"


def _text(value: str) -> str:
    """A surrogate that stands alone, which is no text in UTF-8, becomes a question mark."""
    return str.__str__(value).encode(errors="replace").decode()
