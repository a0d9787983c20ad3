"""The trainers of the fault matrix: they announce each moment, and note what becomes of every prompt."""

import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError
from transfer_queue import KVBatchMeta

from recipe.async_dapo.core.outcome import GroupOutcome, Verdict
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo.training.checkpoints import RolloutState
from recipe.async_dapo.training.observer import Observer
from recipe.async_dapo.training.replay_buffer import RoundReplayBuffer
from recipe.async_dapo.training.trainer import AsyncDAPOTrainer
from recipe.async_dapo_lab.rehearsal.training import RehearsedAsyncDAPO

from .audit import Note
from .cells import LIFE, NOTES, SOCKET, Moment, Stack

_LOOK_S = 0.02


def announce(moment: Moment, *, waits: bool = False) -> None:
    """
    Args:
        waits: for an answer, which comes when who listens has struck, or has nothing to strike.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        if waits:
            own = Path(f"{os.environ[SOCKET]}a")
            own.unlink(missing_ok=True)
            sender.bind(str(own))
        sender.sendto(moment.encode(), os.environ[SOCKET])
        if waits:
            sender.recv(1)


class EndedKeys(Observer):
    """Notes prompts whose groups have ended, by their keys."""

    def __init__(self) -> None:
        self.valid: dict[str, str] = {}  # uid -> key, of groups that are not trained
        self.others: list[str] = []

    def group_ended(self, group: PromptGroup, outcome: GroupOutcome) -> None:
        if outcome.verdict is Verdict.VALID:
            self.valid[group.uid] = group.key
        else:
            self.others.append(group.key)


class NotingReplayBuffer(RoundReplayBuffer):
    """Remembers prompts by their keys, which stay the same whenever they are drawn."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.drawn: list[str] = []
        self.observers["keys"] = self._ended = EndedKeys()

    def restore(self, state: RolloutState) -> None:
        super().restore(state)
        self._ended.valid |= {one.uid: one.group.key for one in state.pool.carried}

    def take_note(self, step: int, trained_uids: frozenset[str]) -> Note:
        state = self.pool.state()
        held: list[PromptGroup] = [*state.waiting, *state.buffered]
        carried = [one.group for one in state.carried]
        note = Note(
            life=int(os.environ[LIFE]),
            step=step,
            drawn=tuple(self.drawn),
            trained=tuple(self._ended.valid.pop(uid) for uid in trained_uids),
            ended=tuple(self._ended.others),
            held=tuple(group.key for group in held + carried),
        )
        self.drawn, self._ended.others = [], []
        return note


class Announcing(AsyncDAPOTrainer):
    """Mixed into a trainer."""

    replay_buffer: NotingReplayBuffer
    _buffer_class = NotingReplayBuffer
    _trained: frozenset[str] = frozenset()  # since the last checkpoint

    def _draw(self, count: int) -> list[PromptGroup]:
        groups = super()._draw(count)
        self.replay_buffer.drawn += [group.key for group in groups]
        return groups

    def _setup(self) -> None:
        announce(Moment.START)
        super()._setup()

    def on_train_begin(self) -> None:
        super().on_train_begin()
        announce(Moment.BEFORE)

    def prepare_step(self) -> dict[str, Any]:
        metrics = super().prepare_step()
        manager = self.replay_buffer.manager
        threading.Thread(
            target=_watch_round, args=(manager._coordinator, manager._balancer, manager._round_id), daemon=True
        ).start()
        return metrics

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        announce(Moment.TRAINING)
        self._trained |= {key.split("_")[0] for key in batch.keys}
        return super()._update_actor(batch, metrics)

    def _save_checkpoint(self) -> None:
        trained, self._trained = self._trained, frozenset()
        note = self.replay_buffer.take_note(self.global_steps, trained)
        with open(os.environ[NOTES], "ab") as file:
            file.write(msgspec.json.encode(note) + b"\n")
        announce(Moment.SAVE)
        super()._save_checkpoint()

    def on_step_end(self) -> None:
        self._announce_update()
        super().on_step_end()

    def _announce_update(self) -> None:
        announce(Moment.UPDATE)

    def on_validate_begin(self) -> None:
        super().on_validate_begin()
        announce(Moment.VALIDATION)


def _watch_round(coordinator: Any, balancer: Any, round_id: str) -> None:
    try:
        while not ray.get(balancer.get_status.remote())["total_inflight"]:
            time.sleep(_LOOK_S)
        announce(Moment.ROUND)
        ray.get(coordinator.wait_stopped.remote(round_id))
        announce(Moment.STOPPING)
    except RayError:  # one of them was struck
        return


class StruckRehearsal(Announcing, RehearsedAsyncDAPO):
    """On emulated engines."""


class StruckTraining(Announcing, AsyncDAPOTrainer):
    """On vLLM."""


def struck_trainer(stack: Stack) -> type[AsyncDAPOTrainer]:
    if stack.is_separate:
        from .announcing_separate import StruckSeparate  # an extension, which a copy may lack

        return StruckSeparate
    return StruckRehearsal if stack.is_rehearsed else StruckTraining
