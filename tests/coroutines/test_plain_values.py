"""Values of users' data, rewards and agent loops come back as they were, or are refused by name."""

from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.record.plain_values import MAX_DEPTH, read_extension, to_plain

from ..support.costly import costly
from ..support.texts import any_text

NUMBERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint64", "float16", "float32", "float64")
TENSORS = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32)


def arrays() -> st.SearchStrategy[Any]:
    shapes = st.lists(st.integers(0, 3), max_size=3)
    return st.one_of(
        st.builds(lambda shape, kind: np.ones(shape, kind), shapes, st.sampled_from(NUMBERS)),
        st.builds(lambda number, kind: np.dtype(kind).type(number), st.integers(0, 100), st.sampled_from(NUMBERS)),
        st.builds(lambda shape, kind: torch.ones(shape).to(kind), shapes, st.sampled_from(TENSORS)),
        st.builds(lambda words: np.array(words, dtype="U"), st.lists(st.text("ab"), min_size=1)),
    )


def objects(items: list[Any]) -> np.ndarray:
    array = np.empty(len(items), dtype=object)
    for i, item in enumerate(items):
        array[i] = item
    return array


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        any_text(),
        st.binary(),
        st.decimals(allow_nan=False),
        st.datetimes(),
        st.dates(),
        st.times(),
        arrays(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(objects),
        st.dictionaries(st.one_of(any_text(), st.integers(-5, 5)), inner, max_size=3),
    ),
    max_leaves=10,
)


def read_back(values: dict[str, Any]) -> Any:
    plain = msgspec.msgpack.encode(to_plain(values, source="data set"))
    return msgspec.msgpack.decode(plain, ext_hook=read_extension)


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and all(map(same, a.ravel().tolist(), b.ravel().tolist()))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return bool(a == b)


@pytest.mark.slow
@costly()
@given(value=VALUES)
def test_given_plain_values_arrays_and_tensors_when_read_back_then_they_are_what_they_were(value: Any) -> None:
    assert same(read_back({"column": value}), {"column": value})


def test_given_a_surrogate_that_stands_alone_then_it_is_read_back_as_a_question_mark() -> None:
    assert read_back({"\udc80": ["caf\xe9 \ud800"]}) == {"?": ["caf\xe9 ?"]}


def test_given_a_time_zone_and_transposed_arrays_when_read_back_then_they_are_what_they_were_and_can_be_written_to():
    row = {"seen": datetime(2026, 1, 2, tzinfo=UTC), "tensor": torch.ones(3, 4).T, "array": np.ones((2, 3)).T}
    back = read_back(row)
    assert same(back, row)
    back["tensor"] += 1
    back["array"] += 1


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"tool": [1, Path("a")]}, r"^data set=tool\[1\]: is a pathlib\."),
        ({"a": {"b": {1.5: 2}}}, r"^data set=a\.b: has a key of type float"),
        ({"share": Fraction(1, 2)}, "^data set=share: is a fractions.Fraction, which no checkpoint can hold: use"),
        ({"words": {"a"}}, "^data set=words: is a builtins.set"),
        ({"when": np.array(["2026-01-01"], "M8[D]")}, "^data set=when: is an array of datetime64"),
        ({"sparse": torch.eye(2).to_sparse()}, "^data set=sparse: is a nested, sparse"),
    ],
)
def test_given_any_other_value_then_its_key_is_named(value: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        to_plain(value, source="data set")


def test_given_a_value_that_holds_itself_then_it_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ConfigError, match=f"is nested deeper than {MAX_DEPTH} levels"):
        to_plain({"a": endless}, source="data set")
