"""A Qwen3 with about 100 thousand parameters and a character-level tokenizer, both made without a download, and a
supervised warm start, in which it imitates the careless teacher of `task.py`.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from types import MappingProxyType

import torch
from tokenizers import Tokenizer, decoders, models
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from .muon import Muon
from .task import QUICK_START, TaskShape, draw_problem

_PAD, _START, _END, _UNKNOWN = "<pad>", "<|im_start|>", "<|im_end|>", "<unk>"
_SPECIAL = (_PAD, _START, _END, _UNKNOWN)
_PRINTABLE = "\n" + "".join(chr(code) for code in range(32, 127))

# ChatML with the role cut to one letter, which keeps prompts short.
_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'][0] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a\n{% endif %}"
)

UPDATES = 500
BATCH_TOK = 1024
# With the first a model learns what the quick start needs fastest. One that has not learned its teacher's ways by then
# goes on with the second.
LEARNING_RATES = (2e-2, 1e-2)
_RISING, _FALLING = 0.05, 0.8  # parts of the updates in which the rate rises to its height, and in which it falls to 0
_LEARNED = 1.15  # loss over the teacher's entropy: those that have learned are at 1.0, others were at 1.3

# What a model of this width and context learns from soonest: rotations tell apart the few hundred positions that there
# are, rather than the 10,000s of large models, and characters differ from the start.
_ROPE_BASE = 100.0
_INITIAL_STD, _INITIAL_EMBEDDING_STD = 0.08, 0.5

# Heavier than the task's own tail (0.8), so that counting down from high numbers is practised as well.
_TAIL_EXPONENT = 0.5
_DEMONSTRATIONS_PER_REFILL = 1024
_IGNORED = -100


def build_tokenizer(named: Mapping[str, str] = MappingProxyType({})) -> PreTrainedTokenizerFast:
    """One token per printable ASCII character; a response ends with `<|im_end|>`.

    Args:
        named: more special tokens, each by the attribute that names it.
    """
    special = [*_SPECIAL, *named.values()]
    vocab = {token: index for index, token in enumerate([*special, *_PRINTABLE])}
    characters = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=_UNKNOWN))
    characters.decoder = decoders.Fuse()
    characters.add_special_tokens(special)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=characters,
        pad_token=_PAD,
        eos_token=_END,
        unk_token=_UNKNOWN,
        clean_up_tokenization_spaces=False,
        extra_special_tokens=dict(named),
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> Qwen3ForCausalLM:
    """Random weights in fp32.

    The vocabulary is exactly the tokenizer's: verl masks tokens beyond it in vLLM only, which would
    put a constant gap between rollout and training log-probabilities.
    """
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": _ROPE_BASE},
        initializer_range=_INITIAL_STD,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).float()
        torch.nn.init.normal_(model.get_input_embeddings().weight, std=_INITIAL_EMBEDDING_STD)
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    prompt: list[int]  # token ids
    response: list[int]
    entropy: float  # of the teacher's choices in it [nats]

    @property
    def len_tok(self) -> int:
        return len(self.prompt) + len(self.response)


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
) -> float:
    """Trains `model` in place; returns the last loss over the teacher's entropy."""
    for learning_rate in LEARNING_RATES:
        batches = _batches(tokenizer, random.Random(f"warm-start-{seed}"), shape)
        ratio = _imitate(model, batches, learning_rate, tokenizer.pad_token_id)
        if ratio <= _LEARNED:
            break
    return ratio


def _imitate(
    model: Qwen3ForCausalLM,
    batches: Iterator[list[Demonstration]],
    learning_rate: float,
    pad_id: int,
) -> float:
    """One cycle of the learning rate. Returns the loss over the teacher's entropy, of the last tenth of it."""
    optimizers = _optimizers(model, learning_rate)
    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, _share_of_rate) for optimizer in optimizers]
    loss_sum, entropy_sum = 0.0, 0.0
    model.train()
    for update in range(UPDATES):
        batch = next(batches)
        tokens_BT, targets_BT = _pad(batch, pad_id=pad_id)
        logits_BTV = model(input_ids=tokens_BT).logits
        loss = cross_entropy(logits_BTV[:, :-1].flatten(0, 1), targets_BT[:, 1:].flatten(), ignore_index=_IGNORED)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        if update >= UPDATES - max(UPDATES // 10, 1):
            loss_sum += loss.item() * int((targets_BT != _IGNORED).sum())
            entropy_sum += sum(each.entropy for each in batch)
    model.eval()
    return loss_sum / entropy_sum


def _optimizers(model: Qwen3ForCausalLM, learning_rate: float) -> tuple[torch.optim.Optimizer, ...]:
    """Of the layers' matrices, and of all other parameters."""
    matrices = [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]
    known = {id(matrix) for matrix in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in known]
    adam = torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    return Muon(matrices, lr=learning_rate), adam


def _share_of_rate(update: int) -> float:
    """Of the learning rate's height."""
    return min(1.0, (update + 1) / (_RISING * UPDATES), (UPDATES - update) / (_FALLING * UPDATES))


def _batches(tokenizer: PreTrainedTokenizerFast, rng: random.Random, shape: TaskShape) -> Iterator[list[Demonstration]]:
    """Endless batches of at most `BATCH_TOK` tokens, padding included: equal lengths go together."""
    prompt_of = cache(partial(_prompt, tokenizer))
    while True:
        refill = sorted(
            (_demonstrate(tokenizer, rng, shape, prompt_of) for _ in range(_DEMONSTRATIONS_PER_REFILL)),
            key=lambda demonstration: demonstration.len_tok,
        )
        batches: list[list[Demonstration]] = [[]]
        for demonstration in refill:
            if (len(batches[-1]) + 1) * demonstration.len_tok > BATCH_TOK:
                batches.append([])
            batches[-1].append(demonstration)
        rng.shuffle(batches)
        yield from batches


def _prompt(tokenizer: PreTrainedTokenizerFast, question: str) -> list[int]:
    messages = [{"role": "user", "content": question}]
    tokens: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return tokens


def _demonstrate(
    tokenizer: PreTrainedTokenizerFast, rng: random.Random, shape: TaskShape, prompt_of: Callable[[str], list[int]]
) -> Demonstration:
    problem = draw_problem(rng, held_out=False, shape=replace(shape, tail_exponent=_TAIL_EXPONENT))
    response = [*tokenizer.encode(problem.careless_answer(rng, shape.carelessness)), tokenizer.eos_token_id]
    p = shape.carelessness
    entropy = -problem.carries * (p * math.log(p) + (1 - p) * math.log(1 - p))
    return Demonstration(prompt=prompt_of(problem.question), response=response, entropy=entropy)


def _pad(batch: list[Demonstration], *, pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and targets, both [B, T] and padded on the right; only response tokens are targets."""
    width = max(each.len_tok for each in batch)
    tokens_BT = torch.full((len(batch), width), pad_id)
    targets_BT = torch.full((len(batch), width), _IGNORED)
    for row, each in enumerate(batch):
        tokens_BT[row, : each.len_tok] = torch.tensor(each.prompt + each.response)
        answer = slice(len(each.prompt), each.len_tok)
        targets_BT[row, answer] = tokens_BT[row, answer]
    return tokens_BT, targets_BT
