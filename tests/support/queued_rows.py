"""TransferQueue's rows, in this process."""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils.tensordict_utils import list_of_dict_to_tensordict


class QueuedRows:
    """Fields of rows, by their keys."""

    def __init__(self, rows: dict[str, dict[str, Any]]) -> None:
        self.rows = rows

    def kv_batch_get(self, *, keys: Sequence[str], partition_id: str, select_fields: Sequence[str] = ()) -> TensorDict:
        names = [*(select_fields or self.rows[keys[0]])]
        return list_of_dict_to_tensordict([{name: self.rows[key][name] for name in names} for key in keys])

    def kv_batch_put(self, *, keys: Sequence[str], partition_id: str, fields: TensorDict, **_: Any) -> None:
        by_name = {
            name: [*(each.unbind() if isinstance(each, torch.Tensor) else each)] for name, each in fields.items()
        }
        for row, key in enumerate(keys):
            self.rows.setdefault(key, {}).update({name: values[row] for name, values in by_name.items()})
