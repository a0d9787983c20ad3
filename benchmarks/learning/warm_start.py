"""The supervised start of a task: a model that imitates the careless teacher, made once a seed and kept on disk."""

import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from .model import TinyTransformer, padded
from .tasks import END, Task, to_tokens

BATCH_TOK = 1024
_LEARNING_RATE = 3e-3
_DRAWN_AT_ONCE = 1024
_IGNORED = -100


def warm_model(task: Task, seed: int, folder: Path) -> TinyTransformer:
    """From the folder, where it is there."""
    model, file = TinyTransformer(seed), folder / f"{task.name.replace(' ', '_')}-{task.warm_updates}-{seed}.pt"
    if file.exists():
        model.load_state_dict(torch.load(file, weights_only=True))
        return model
    _imitate(model, task, seed)
    folder.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}")
    torch.save(model.state_dict(), part)
    part.replace(file)
    return model


def fingerprint(model: TinyTransformer) -> str:
    """Of the weights. A seed's warm start has others on another kind of machine, mostly with another accuracy."""
    weights = model.state_dict().values()
    return f"{zlib.crc32(b''.join(one.numpy().tobytes() for one in weights)):08x}"


def _imitate(model: TinyTransformer, task: Task, seed: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=_LEARNING_RATE, total_steps=task.warm_updates)
    batches = _batches(task, random.Random(f"{task.name}-warm-{seed}"))
    for _, rows in zip(range(task.warm_updates), batches, strict=False):
        tokens_BT = padded(rows)
        targets_BT = torch.full_like(tokens_BT, _IGNORED)
        for row, tokens in enumerate(rows):
            targets_BT[row, task.prompt_tok : len(tokens)] = tokens_BT[row, task.prompt_tok : len(tokens)]
        logits_BTV = model(tokens_BT[:, :-1])
        loss = cross_entropy(logits_BTV.flatten(0, 1), targets_BT[:, 1:].flatten(), ignore_index=_IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def _batches(task: Task, rng: random.Random) -> Iterator[list[list[int]]]:
    """Endless batches of rows of about equal length."""
    while True:
        drawn = [task.exercise(rng, held_out=False) for _ in range(_DRAWN_AT_ONCE)]
        rows = sorted(([*to_tokens(one.prompt + one.teach(rng)), END] for one in drawn), key=len)
        batches: list[list[list[int]]] = [[]]
        for row in rows:
            if (len(batches[-1]) + 1) * len(row) > BATCH_TOK:
                batches.append([])
            batches[-1].append(row)
        rng.shuffle(batches)
        yield from batches
