"""A causal transformer of about 100 thousand parameters in float32, and how it samples: batched, with a KV cache.

Axes: B rows, H heads, T tokens, D features of a head, W of the model, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .tasks import END, VOCABULARY

LAYERS, HEADS, WIDTH = 2, 2, 64
_HEAD = WIDTH // HEADS
LONGEST_TOK = 512  # prompt and response
MOST_ROWS = 512  # that are sampled at once
_DROP_EVERY = 8  # decode steps between two looks for rows that have ended

Cache = tuple[Tensor, Tensor]  # keys and values, [B, H, T, D]


def _rotations() -> Tensor:
    """[T, 2, D / 2], cosine and sine of each position (RoPE, arXiv:2104.09864)."""
    frequency_D = 10_000.0 ** (-torch.arange(_HEAD // 2) / (_HEAD // 2))
    angle_TD = torch.arange(LONGEST_TOK)[:, None] * frequency_D
    return torch.stack([angle_TD.cos(), angle_TD.sin()], dim=1)


def _rotate(x_BHTD: Tensor, rotation: Tensor) -> Tensor:
    first, second = x_BHTD.chunk(2, dim=-1)
    cos, sin = rotation.unbind(-2)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def project(self, x_BTW: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [B, H, T, D] each."""
        shape = (*x_BTW.shape[:2], 3, HEADS, _HEAD)
        q, k, v = self.qkv(self.attention_norm(x_BTW)).view(shape).permute(2, 0, 3, 1, 4)
        return _rotate(q, rotation), _rotate(k, rotation), v

    def add(self, x_BTW: Tensor, attended_BHTD: Tensor) -> Tensor:
        x_BTW = x_BTW + self.out(attended_BHTD.transpose(1, 2).flatten(2))
        return x_BTW + self.down(F.silu(self.up(self.feed_norm(x_BTW))))


class TinyTransformer(nn.Module):
    """Logits of the next token."""

    def __init__(self, seed: int) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm = nn.RMSNorm(WIDTH)
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("rotations", _rotations(), persistent=False)

    def forward(self, tokens_BT: Tensor, caches: list[Cache] | None = None) -> Tensor:
        """[B, T, V] of whole rows, padded on the right; their keys and values are appended to `caches`."""
        x_BTW = self.embed(tokens_BT)
        for block in self.blocks:
            q, k, v = block.project(x_BTW, self.rotations[: tokens_BT.shape[1]])
            if caches is not None:
                caches.append((k, v))
            x_BTW = block.add(x_BTW, F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.head(self.norm(x_BTW))

    def decode(self, tokens_B: Tensor, at_B: Tensor, caches: list[Cache]) -> Tensor:
        """[B, V] after one more token a row, which is at this position and is written to the caches."""
        x_BTW = self.embed(tokens_B)[:, None]
        rotation, rows = self.rotations[at_B][:, None, None], torch.arange(len(tokens_B))
        seen = int(at_B.max()) + 1
        mask = (torch.arange(seen) <= at_B[:, None])[:, None, None]
        for block, (keys, values) in zip(self.blocks, caches, strict=True):
            q, k, v = block.project(x_BTW, rotation)
            keys[rows, :, at_B], values[rows, :, at_B] = k[:, :, 0], v[:, :, 0]
            attended = F.scaled_dot_product_attention(q, keys[:, :, :seen], values[:, :, :seen], attn_mask=mask)
            x_BTW = block.add(x_BTW, attended)
        return self.head(self.norm(x_BTW))[:, 0]


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """[B, T], padded on the right."""
    tokens_BT = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for tokens_T, row in zip(tokens_BT, rows, strict=True):
        tokens_T[: len(row)] = torch.tensor(row)
    return tokens_BT


@dataclass(slots=True, kw_only=True)
class Continuation:
    """What a model has sampled after a context, with the log-probs it was sampled with [nats]."""

    tokens: list[int]
    log_probs: list[float]


@torch.no_grad()
def sample(
    model: TinyTransformer, contexts: Sequence[Sequence[int]], most_tok: Sequence[int], generator: torch.Generator
) -> list[Continuation]:
    """Continue each context at temperature 1 until the end token, or for so many tokens."""
    continuations = [Continuation(tokens=[], log_probs=[]) for _ in contexts]
    order = sorted(range(len(contexts)), key=lambda row: len(contexts[row]))
    for first in range(0, len(order), MOST_ROWS):
        rows = order[first : first + MOST_ROWS]
        most_B = torch.tensor([most_tok[row] for row in rows])
        _sample_rows(model, [contexts[row] for row in rows], most_B, [continuations[row] for row in rows], generator)
    return continuations


def _sample_rows(
    model: TinyTransformer,
    contexts: Sequence[Sequence[int]],
    left_B: Tensor,
    continuations: Sequence[Continuation],
    generator: torch.Generator,
) -> None:
    """`left_B`: how many tokens each row may get, at least one."""
    prefix: list[Cache] = []
    at_B = torch.tensor([len(context) for context in contexts])  # where the next token goes
    logits_BTV = model(padded(contexts), prefix)
    logits_BV = logits_BTV[torch.arange(len(at_B)), at_B - 1]
    room = int(left_B.max())
    caches = [(F.pad(keys, (0, 0, 0, room)), F.pad(values, (0, 0, 0, room))) for keys, values in prefix]
    alive_B, steps = torch.arange(len(at_B)), 0
    drawn: list[tuple[Tensor, Tensor, Tensor]] = []
    while True:
        log_prob_BV = logits_BV.log_softmax(-1)
        noise_BV = torch.empty_like(log_prob_BV).exponential_(generator=generator)
        token_B = (log_prob_BV.exp() / noise_BV).argmax(-1)
        drawn.append((alive_B, torch.where(left_B > 0, token_B, -1), log_prob_BV.gather(1, token_B[:, None])[:, 0]))
        left_B = torch.where(token_B == END, 0, left_B - 1).clamp(min=0)
        steps += 1
        if steps % _DROP_EVERY == 0 or not left_B.any():
            kept = left_B.nonzero()[:, 0]
            if not len(kept):
                break
            if len(kept) < 0.8 * len(left_B):
                at_B, left_B, token_B, alive_B = at_B[kept], left_B[kept], token_B[kept], alive_B[kept]
                caches = [(keys[kept], values[kept]) for keys, values in caches]
        logits_BV = model.decode(token_B, at_B, caches)
        at_B = at_B + (left_B > 0)
    for alive, tokens, log_probs in drawn:
        for row, token, log_prob in zip(alive.tolist(), tokens.tolist(), log_probs.tolist(), strict=True):
            if token >= 0:
                continuations[row].tokens.append(token)
                continuations[row].log_probs.append(log_prob)
