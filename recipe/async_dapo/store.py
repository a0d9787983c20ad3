"""TransferQueue, verl's data plane: what is kept in it. `data_plane.py` starts it, and no other module touches it.

A trained trajectory is stored under `{uid}_{session}_{output}` with the fields verl's trainer reads, and a tag of
its length and policy versions. Prompts never enter the training partition: the pool holds them.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
import transfer_queue as tq
from tensordict import NonTensorData, TensorDict
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from .core.staleness import VersionTag
from .core.trajectory import PromptGroup, Trajectory

TRAIN, VAL = "train", "val"
_NAMES = """
    prompts responses prompt_ids response_ids response_mask response_logprobs rollout_log_probs reward_score rm_scores
    num_turns metrics extra_fields routed_experts multi_modal_data multi_modal_inputs mm_processor_kwargs
    mm_processor_output teacher_ids teacher_logprobs uid session_id input_ids position_ids attention_mask loss_mask
    policy_versions log_probs old_log_probs ref_log_prob entropy values advantages returns token_level_scores
    token_level_rewards rollout_is_weights row_weights pixels
"""
FIELDS = frozenset(_NAMES.split())  # what agent loops, this module and verl's trainer store of a trajectory


class TrajectoryTag(VersionTag):
    """What the queue tells of a stored trajectory without its tokens; names as verl reads them."""

    seq_len: int  # of prompt and response [tokens]
    max_global_steps: int  # newest policy version


ModelInputs = Callable[[str, torch.Tensor], dict[str, Any]]  # a row's key and tokens -> what a model takes beside them


def text_inputs(key: str, input_ids_T: torch.Tensor) -> dict[str, Any]:
    """Of a model of text."""
    return {"position_ids": torch.arange(len(input_ids_T)), "multi_modal_inputs": {}}


def rows_of(
    group: PromptGroup, inputs_of: ModelInputs = text_inputs
) -> Iterable[tuple[str, dict[str, Any], TrajectoryTag]]:
    """(key, fields, tag) of every output of a group's finished trajectories."""
    # Wrapped once a group: `list_of_dict_to_tensordict` would wrap them row by row.
    prompt = {
        key: value if isinstance(value, torch.Tensor) else NonTensorData(value) for key, value in group.prompt.items()
    }
    for trajectory in group.trajectories:
        if trajectory.is_finished:
            yield from _rows(group, prompt, trajectory, inputs_of)


def row_key(group: PromptGroup, trajectory: Trajectory, output: int) -> str:
    """Of one of a trajectory's outputs, by number."""
    return f"{group.uid}_{trajectory.session_id}_{output}"


def _rows(
    group: PromptGroup, prompt: dict[str, Any], trajectory: Trajectory, inputs_of: ModelInputs
) -> Iterable[tuple[str, dict[str, Any], TrajectoryTag]]:
    for index, packed in enumerate(trajectory.outputs):
        key = row_key(group, trajectory, index)
        versions = [version for version, _ in packed.stamps or trajectory.stamps]
        fields = prompt | packed.fields()
        fields["extra_fields"] = fields["extra_fields"] | {"segments": list(packed.stamps), "age": trajectory.age}
        fields["uid"], fields["session_id"] = group.uid, trajectory.session_id
        fields["input_ids"] = torch.cat([fields["prompts"], fields["responses"]])
        fields |= inputs_of(key, fields["input_ids"])
        fields["loss_mask"] = fields["response_mask"]
        fields["policy_versions"] = _policy_versions(fields["response_mask"], packed.stamps)
        tag = TrajectoryTag(
            seq_len=len(fields["input_ids"]),
            min_global_steps=min(versions),
            max_global_steps=max(versions),
            segments=list(packed.stamps),
            age=trajectory.age,
        )
        yield key, fields, tag


def _policy_versions(response_mask_T: torch.Tensor, stamps: tuple[tuple[int, int], ...]) -> torch.Tensor:
    """[T] int32: the policy version that sampled each token; -1 for tokens that no policy sampled."""
    versions_T = torch.full_like(response_mask_T, -1, dtype=torch.int32)
    version_S, count_S = torch.tensor(stamps, dtype=torch.int32).reshape(-1, 2).unbind(1)
    versions_T[response_mask_T.bool()] = version_S.repeat_interleave(count_S)
    return versions_T


async def put_group(group: PromptGroup, *, partition_id: str, inputs_of: ModelInputs) -> None:
    """Store all finished trajectories of a group in one call."""
    rows = list(rows_of(group, inputs_of))
    if not rows:
        return
    keys, fields, tags = zip(*rows, strict=True)
    await tq.async_kv_batch_put(
        keys=list(keys), fields=list_of_dict_to_tensordict(list(fields)), tags=list(tags), partition_id=partition_id
    )


def batch_of(uids: Collection[str], *, partition_id: str) -> KVBatchMeta:
    """Keys and tags of all trajectories of the given groups, group by group in the given order."""
    by_uid: dict[str, list[tuple[str, TrajectoryTag]]] = {uid: [] for uid in uids}
    for key, tag in (tq.kv_list(partition_id) or {}).get(partition_id, {}).items():
        uid, *rest = key.split("_")
        if uid in by_uid and rest:  # a key of one part is a status marker of verl's
            by_uid[uid].append((key, tag))
    rows = [row for uid in uids for row in sorted(by_uid[uid], key=lambda row: row[0])]
    return KVBatchMeta(partition_id=partition_id, keys=[key for key, _ in rows], tags=[tag for _, tag in rows])


def forget_prompts(uids: Collection[str], *, partition_id: str) -> None:
    """Drop the status markers that verl's validation registers for its prompts."""
    if uids:
        tq.kv_clear(keys=list(uids), partition_id=partition_id)


def forget_groups(uids: Collection[str], *, partition_id: str) -> None:
    """Drop all trajectories of the given groups."""
    if uids:
        batch = batch_of(uids, partition_id=partition_id)
        if batch.keys:
            tq.kv_clear(keys=batch.keys, partition_id=partition_id)


def withhold(batch: KVBatchMeta, *, oldest_version: int) -> int:
    """Mask tokens of policy versions before `oldest_version` out of the loss. Their trajectories keep their rewards, so
    that the group's baseline stays what it was. `exclude_from_denominator` takes them out of the loss's denominator,
    when it is known which rows make an update. Returns the number of tokens withheld.
    """
    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag["min_global_steps"] < oldest_version]
    if not keys:
        return 0
    data = read(batch, ["response_mask", "policy_versions"], keys)
    masks, withheld_tok = [], 0
    for mask_T, versions_T in zip(data["response_mask"].unbind(), data["policy_versions"].unbind(), strict=True):
        is_stale_T = (versions_T >= 0) & (versions_T < oldest_version)
        masks.append(torch.where(is_stale_T, 0, mask_T))
        withheld_tok += int(is_stale_T.sum())
    _put(batch, keys, "response_mask", masks)
    return withheld_tok


def read(batch: KVBatchMeta, fields: list[str], keys: Sequence[str] | None = None) -> TensorDict:
    """Fields of a batch, or of some of its keys."""
    wanted = batch.keys if keys is None else list(keys)
    return tq.kv_batch_get(keys=wanted, partition_id=batch.partition_id, select_fields=fields)


def read_fields(batch: KVBatchMeta, fields: list[str]) -> dict[str, list[torch.Tensor]]:
    """Fields of a batch, a tensor [T] for each trajectory."""
    data = read(batch, fields)
    return {name: list(data[name].unbind()) for name in fields}


def read_object(key: str, field: str) -> Any:
    """What `ModelInputs` has left in a row for training, where that is no tensor."""
    data = tq.kv_batch_get(keys=[key], partition_id=TRAIN, select_fields=[field])
    return data[field][0]


def write_field(batch: KVBatchMeta, field: str, rows: Iterable[torch.Tensor]) -> None:
    """A field of a batch, [T] for each trajectory; whatever is done with the batch finds it there."""
    _put(batch, batch.keys, field, rows)
    if batch.fields is not None and field not in batch.fields:
        batch.fields.append(field)


def _put(batch: KVBatchMeta, keys: Sequence[str], field: str, rows: Iterable[torch.Tensor]) -> None:
    nested = torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)
    fields = TensorDict({field: nested}, batch_size=len(keys))
    tq.kv_batch_put(keys=list(keys), partition_id=batch.partition_id, fields=fields)


def exclude_from_denominator(batch: KVBatchMeta, updates: Iterable[Sequence[int]]) -> None:
    """Exclude tokens that were withheld, or that verl has rejected, from the denominator of verl's loss. An update that
    has no other tokens counts one of each row: its loss is 0 / 1, and not 0 / 0.

    Args:
        updates: the rows of each.
    """
    data = read_fields(batch, ["response_mask", "loss_mask"])
    left, counted = data["response_mask"], data["loss_mask"]
    for update in updates:
        has_some = any(left[row].any() for row in update)
        for row in update:
            counted[row] = left[row] if has_some else counted[row] * (counted[row].cumsum(0) == 1)
    write_field(batch, "loss_mask", counted)


def read_padded(batch: KVBatchMeta, fields: list[str]) -> TensorDict:
    """Fields of a batch, each padded with zeros to [B, T]."""
    return read(batch, fields).to_padded_tensor()


def is_padding(tag: dict[str, Any]) -> bool:
    """Whether a row is one that verl has made up, to fill a batch to whole mini-batches."""
    return bool(tag.get("is_padding", False))


def complete_padding(batch: KVBatchMeta) -> None:
    """Give verl's padding policy versions of its own length: it has those of the row that it is a copy of. No policy
    sampled it.
    """
    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if is_padding(tag)]
    if not keys:
        return
    masks = read(batch, ["response_mask"], keys)["response_mask"].unbind()
    _put(batch, keys, "policy_versions", [torch.full_like(mask_T, -1, dtype=torch.int32) for mask_T in masks])


def forget_all_but(uids: Collection[str], *, partition_id: str) -> None:
    """Drop every group but the given ones: what a checkpoint's queue holds of batches that were already trained."""
    keep = set(uids)
    keys = [key for key in (tq.kv_list(partition_id) or {}).get(partition_id, {}) if key.split("_")[0] not in keep]
    if keys:
        tq.kv_clear(keys=keys, partition_id=partition_id)
