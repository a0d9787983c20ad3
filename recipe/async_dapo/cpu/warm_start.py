"""Supervised warm start: the model imitates the careless teacher of `task.py`."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from .task import QUICK_START, TaskShape, draw_problem

UPDATES = 1000
BATCH_TOK = 1024
LEARNING_RATE = 2e-3  # with twice as much it depends on seed and machine whether a model learns the task

# Heavier than the task's own tail (0.8), so that counting down from high numbers is practised as well.
_TAIL_EXPONENT = 0.5
_DEMONSTRATIONS_PER_REFILL = 1024
_IGNORED = -100

Demonstration = tuple[list[int], list[int]]  # prompt and response token ids


@contextmanager
def _one_thread() -> Iterator[None]:
    """For layers this small a second thread costs more than it brings, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@_one_thread()
def warm_start(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    *,
    seed: int,
    shape: TaskShape = QUICK_START,
    on_progress: Callable[[float], None] = lambda share: None,
) -> float:
    """Trains `model` in place and reports the share done; returns the last loss in nats per response token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LEARNING_RATE, total_steps=UPDATES)
    batches = _batches(tokenizer, random.Random(f"warm-start-{seed}"), shape)
    model.train()
    for update in range(UPDATES):
        tokens_BT, targets_BT = _pad(next(batches), pad_id=tokenizer.pad_token_id)
        logits_BTV = model(input_ids=tokens_BT).logits
        loss = cross_entropy(logits_BTV[:, :-1].flatten(0, 1), targets_BT[:, 1:].flatten(), ignore_index=_IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        on_progress((update + 1) / UPDATES)
    model.eval()
    return loss.item()


def _batches(tokenizer: PreTrainedTokenizerFast, rng: random.Random, shape: TaskShape) -> Iterator[list[Demonstration]]:
    """Endless batches of at most `BATCH_TOK` tokens, padding included: equal lengths go together."""
    while True:
        refill = sorted(
            (_demonstrate(tokenizer, rng, shape) for _ in range(_DEMONSTRATIONS_PER_REFILL)),
            key=lambda demonstration: len(demonstration[0]) + len(demonstration[1]),
        )
        batches: list[list[Demonstration]] = [[]]
        for prompt, response in refill:
            if (len(batches[-1]) + 1) * (len(prompt) + len(response)) > BATCH_TOK:
                batches.append([])
            batches[-1].append((prompt, response))
        rng.shuffle(batches)
        yield from batches


def _demonstrate(tokenizer: PreTrainedTokenizerFast, rng: random.Random, shape: TaskShape) -> Demonstration:
    problem = draw_problem(rng, held_out=False, shape=replace(shape, tail_exponent=_TAIL_EXPONENT))
    messages = [{"role": "user", "content": problem.question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    response = [*tokenizer.encode(problem.careless_answer(rng, shape.carelessness)), tokenizer.eos_token_id]
    return prompt, response


def _pad(batch: list[Demonstration], *, pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and targets, both [B, T] and padded on the right; only response tokens are targets."""
    width = max(len(prompt) + len(response) for prompt, response in batch)
    tokens_BT = torch.full((len(batch), width), pad_id)
    targets_BT = torch.full((len(batch), width), _IGNORED)
    for row, (prompt, response) in enumerate(batch):
        end = len(prompt) + len(response)
        tokens_BT[row, :end] = torch.tensor(prompt + response)
        targets_BT[row, len(prompt) : end] = tokens_BT[row, len(prompt) : end]
    return tokens_BT, targets_BT
