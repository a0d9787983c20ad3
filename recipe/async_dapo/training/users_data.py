"""Data sets, as verl's data loaders get them: an error of the user's code that reads a row stays an error."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torchdata.stateful_dataloader.stateful import Stateful


class UsersData:
    """A data set, as verl's data loaders have it. Where reading a row raises `StopIteration`, a loader would take that
    for its end, and what comes after would never be trained, nor validated.
    """

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, row: Any) -> Any:
        return _read(self._data.__getitem__, row)

    def __getattr__(self, name: str) -> Any:
        if name == "_data":  # of one that is just being unpickled
            raise AttributeError(name)
        own = getattr(self._data, name)
        return partial(_read, own) if name == "__getitems__" else own


def _read(rows_of: Callable[[Any], Any], rows: Any) -> Any:
    try:
        return rows_of(rows)
    except StopIteration as error:
        raise RuntimeError(f"the data set has raised {error!r} when row {rows} was read") from error


class UsersDataWithState(UsersData):
    """One whose state verl's data loaders put into a checkpoint: from Python 3.12 on they look for it in the class."""

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._data.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._data.load_state_dict(state)


class DataOfUsers:
    """An attribute that keeps a data set as `UsersData`. Until one is assigned, there is no such attribute."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, one: Any, owner: type) -> UsersData:
        try:
            return one.__dict__[self._name]
        except KeyError:
            raise AttributeError(f"{self._name} of {owner.__name__} is not loaded yet", name=self._name) from None

    def __set__(self, one: Any, data: Any) -> None:
        kind = UsersDataWithState if isinstance(data, Stateful) else UsersData
        one.__dict__[self._name] = kind(data)
