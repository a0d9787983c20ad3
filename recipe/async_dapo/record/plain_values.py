"""Values of users' data sets, rewards and agent loops as plain data: msgpack, with extensions for what it lacks.

Reading runs no code of the file's: every extension is bytes with a shape, or text of a known type.
"""

import math
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from msgspec.msgpack import Ext

from ..config.values import ConfigError

DATA_SET, AGENT_LOOP = "data set", "agent loop"  # sources
MAX_DEPTH = 64

_TUPLE, _TEXT, _TENSOR, _ARRAY, _SCALAR, _OBJECTS = range(1, 7)
_INT64 = range(-(2**63), 2**63)
# A datetime is a date, too: it comes first.
_TEXT_OF: dict[type, Callable[[Any], str]] = {
    int: hex,
    Decimal: str,
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
}
_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "int": lambda text: int(text, 16),
    "Decimal": Decimal,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
}


class NestedTooDeep(ConfigError):
    """Unlike a value of another kind, what a policy has written may be so."""


class _NotPlain(Exception):
    def __init__(self, problem: str, kind: type[ConfigError] = ConfigError) -> None:
        self.problem = problem
        self.kind = kind
        self.path: list[str] = []


def to_plain(values: dict[str, Any], *, source: str) -> dict[str, Any]:
    """The values as msgspec encodes them; subclasses of Python's own types become these, and a surrogate that stands
    alone, which is no text in UTF-8, becomes a question mark.

    Args:
        source: where they come from, named in the error.

    Raises:
        ConfigError: naming the key of a value that is neither plain, nor an array, nor a tensor.
        NestedTooDeep: of one that is nested too deep.
    """
    try:
        plain: dict[str, Any] = _plain(values, 0)
    except _NotPlain as error:
        raise error.kind(
            source,
            "".join(reversed(error.path)).lstrip("."),
            f"{error.problem}, which no checkpoint can hold: use numbers, text, lists, dicts, arrays, tensors",
        ) from None
    return plain


def read_extension(code: int, data: memoryview) -> Any:
    """msgspec's `ext_hook`.

    Raises:
        Exception: of any kind, for what `to_plain` does not write.
    """
    if code == _TENSOR:
        return safetensors.torch.load(bytes(data))[""]
    if code in (_ARRAY, _SCALAR):
        array = safetensors.numpy.load(bytes(data))[""]
        return array.copy() if code == _ARRAY else array[()]  # the loaded one is read-only
    if code == _TUPLE:
        return tuple(_decoder.decode(data))
    if code == _TEXT:
        kind, text = _decode_text(data)
        return _FROM_TEXT[kind](text)
    if code == _OBJECTS:
        return _objects(*_decode_objects(data))
    raise ValueError(f"unknown extension {code}")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Any], ext_hook=read_extension)
_decode_text = msgspec.msgpack.Decoder(tuple[str, str]).decode
_decode_objects = msgspec.msgpack.Decoder(tuple[str, list[int], list[Any]], ext_hook=read_extension).decode


def _plain(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise _NotPlain(f"is nested deeper than {MAX_DEPTH} levels", NestedTooDeep)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, np.generic):
        return Ext(_SCALAR, _numbers(np.asarray(value)))
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int) and value in _INT64:
        return int(value)
    if isinstance(value, dict):
        return {_key(key): _inside(f".{key}", item, depth) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_inside(f"[{i}]", item, depth) for i, item in enumerate(value)]
        return items if isinstance(value, list) else Ext(_TUPLE, _encoder.encode(items))
    if isinstance(value, torch.Tensor):
        return Ext(_TENSOR, _tensor(value))
    if isinstance(value, np.ndarray):
        return _array(value, depth)
    for kind, text_of in _TEXT_OF.items():
        if isinstance(value, kind):
            return Ext(_TEXT, _encoder.encode((kind.__name__, text_of(value))))
    raise _NotPlain(f"is a {type(value).__module__}.{type(value).__qualname__}")


def _inside(place: str, item: Any, depth: int) -> Any:
    try:
        return _plain(item, depth + 1)
    except _NotPlain as error:
        error.path.append(place)
        raise


def _key(key: Any) -> str | int:
    if isinstance(key, str):
        return _text(key)
    if type(key) is int and key in _INT64:
        return key
    raise _NotPlain(f"has a key of type {type(key).__qualname__}")


def _text(text: str) -> str:
    return str.__str__(text) if text.isascii() else text.encode(errors="replace").decode()


def _numbers(array: np.ndarray) -> bytes:
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise _NotPlain(f"is an array of {array.dtype}")
    return safetensors.numpy.save({"": array})


def _tensor(tensor: torch.Tensor) -> bytes:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        raise _NotPlain("is a nested, sparse or quantized tensor")
    return safetensors.torch.save({"": tensor.detach().cpu().contiguous()})


def _array(array: np.ndarray, depth: int) -> Ext:
    if array.dtype.kind not in "OUS":
        return Ext(_ARRAY, _numbers(array))
    items = [_inside(f"[{i}]", item, depth) for i, item in enumerate(array.ravel().tolist())]
    return Ext(_OBJECTS, _encoder.encode((array.dtype.kind, array.shape, items)))


def _objects(kind: str, shape: list[int], items: list[Any]) -> np.ndarray:
    if math.prod(shape) != len(items) or kind not in "OUS":
        raise ValueError(f"an array of kind {kind} and shape {shape} has {len(items)} items")
    if kind != "O":
        return np.array(items, dtype=kind).reshape(shape)
    array = np.empty(len(items), dtype=object)
    for i, item in enumerate(items):
        array[i] = item
    return array.reshape(shape)
