"""A causal transformer of about 100 thousand parameters in float32, and how it samples: batched, with a KV cache.

Axes: B rows, H heads, T tokens, D features of a head, W of the model, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .tasks import END, VOCABULARY

LAYERS, HEADS, WIDTH = 2, 2, 64
_HEAD = WIDTH // HEADS
LONGEST_TOK = 512  # prompt and response
_DROP_EVERY = 8  # decode steps between two looks for rows that have ended

Cache = tuple[Tensor, Tensor]  # keys and values, [B, H, T, D]
Kept = tuple[Tensor, Tensor]  # those of one row, [H, T, D]


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

    def decode(self, tokens_B: Tensor, at_B: Tensor, mask: Tensor, caches: list[Cache]) -> Tensor:
        """[B, V] after one more token a row, which is at this position of its row, and in the caches' last place."""
        x_BTW = self.embed(tokens_B)[:, None]
        rotation = self.rotations[at_B][:, None, None]
        for block, (keys, values) in zip(self.blocks, caches, strict=True):
            q, k, v = block.project(x_BTW, rotation)
            keys[:, :, -1], values[:, :, -1] = k[:, :, 0], v[:, :, 0]
            x_BTW = block.add(x_BTW, F.scaled_dot_product_attention(q, keys, values, attn_mask=mask))
        return self.head(self.norm(x_BTW))[:, 0]

    def compile_parts(self) -> None:
        """Let the compiler fuse what lies between matrix products: twice as fast, after half a minute."""
        self.forward = torch.compile(self.forward, dynamic=True)  # type: ignore[method-assign]
        self.decode = torch.compile(self.decode, dynamic=True)  # type: ignore[method-assign]


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """[B, T], padded on the right."""
    tokens_BT = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for tokens_T, row in zip(tokens_BT, rows, strict=True):
        tokens_T[: len(row)] = torch.tensor(row)
    return tokens_BT


def stacked(rows: Sequence[Kept]) -> Cache:
    """Padded on the right."""
    keys, values = zip(*rows, strict=True)
    longest_tok = max(one.shape[1] for one in keys)
    fill = [F.pad(one, (0, 0, 0, longest_tok - one.shape[1])) for one in (*keys, *values)]
    return torch.stack(fill[: len(rows)]), torch.stack(fill[len(rows) :])


@dataclass(slots=True)
class Continuation:
    """What a model has sampled after a prompt, with the log-probs it was sampled with [nats]."""

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)


class Sampling:
    """Samples at temperature 1, some tokens at a time, each row until its end token or its limit.

    Args:
        prompts, rows: what is continued, and so far; the rows grow in place.
        most_tok: new tokens of each row, at least one.
        kept: keys and values of each row but for its last token, from the samplings that it comes from: they stay those
            of older weights. By default all are computed anew.
        keeps: whether `kept` is asked for, also of rows that have ended.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: TinyTransformer,
        prompts: Sequence[list[int]],
        rows: Sequence[Continuation],
        most_tok: Sequence[int],
        generator: torch.Generator,
        kept: Sequence[list[Kept]] | None = None,
        keeps: bool = False,
    ) -> None:
        contexts = [prompt + row.tokens for prompt, row in zip(prompts, rows, strict=True)]
        self._model, self._rows, self._generator = model, rows, generator
        self._alive_B, self._left_B = torch.arange(len(rows)), torch.tensor(most_tok)
        self._at_B = torch.tensor([len(context) for context in contexts])  # where the next token goes
        self._caches: list[Cache] = []
        self._decoded_to = 0  # of the caches' places
        self._keeps, self._dropped = keeps, dict[int, list[Kept]]()
        if kept is None:
            logits_BTV = model(padded(contexts), self._caches)
            self._logits_BV = logits_BTV[self._alive_B, self._at_B - 1]
            self._is_seen_BT = torch.arange(logits_BTV.shape[1]) < self._at_B[:, None]
        else:
            self._caches = [stacked(layer) for layer in zip(*kept, strict=True)]
            self._at_B -= 1
            self._is_seen_BT = torch.arange(self._caches[0][0].shape[2]) < self._at_B[:, None]
            self._make_room(1)
            self._decode(torch.tensor([context[-1] for context in contexts]))
            self._at_B += 1

    def kept(self, row: int, most_tok: int) -> list[Kept]:
        """Keys and values of a row's first tokens, prompt included."""
        layers = self._dropped[row] if row in self._dropped else self._of(int((self._alive_B == row).nonzero()))
        return [(keys[:, :most_tok].clone(), values[:, :most_tok].clone()) for keys, values in layers]

    def _of(self, place: int) -> list[Kept]:
        seen = self._is_seen_BT[place]
        return [(keys[place, :, seen], values[place, :, seen]) for keys, values in self._caches]

    @torch.no_grad()
    def advance(self, steps: int) -> None:
        """At most so many tokens more a row."""
        drawn: list[tuple[Tensor, Tensor, Tensor]] = []
        for step in range(steps):
            if step % _DROP_EVERY == 0:
                self._drop_ended()
                self._make_room(min(_DROP_EVERY, steps - step))
            if not self._left_B.any():
                break
            log_prob_BV = self._logits_BV.log_softmax(-1)
            noise_BV = torch.empty_like(log_prob_BV).exponential_(generator=self._generator)
            token_B = (log_prob_BV.exp() / noise_BV).argmax(-1)
            log_prob_B = log_prob_BV.gather(1, token_B[:, None])[:, 0]
            drawn.append((self._alive_B, torch.where(self._left_B > 0, token_B, -1), log_prob_B))
            self._left_B = torch.where(token_B == END, 0, self._left_B - 1).clamp(min=0)
            self._decode(token_B)
            self._at_B = self._at_B + (self._left_B > 0)
        for alive, tokens, log_probs in drawn:
            for row, token, log_prob in zip(alive.tolist(), tokens.tolist(), log_probs.tolist(), strict=True):
                if token >= 0:
                    self._rows[row].tokens.append(token)
                    self._rows[row].log_probs.append(log_prob)

    def _decode(self, token_B: Tensor) -> None:
        self._decoded_to = end = self._decoded_to + 1
        seen = [(keys[:, :, :end], values[:, :, :end]) for keys, values in self._caches]
        self._logits_BV = self._model.decode(token_B, self._at_B, self._is_seen_BT[:, None, None, :end], seen)

    def _make_room(self, steps: int) -> None:
        """In the caches, for steps of decoding."""
        self._decoded_to = self._is_seen_BT.shape[1]
        self._is_seen_BT = F.pad(self._is_seen_BT, (0, steps), value=True)
        room = (0, 0, 0, steps)
        self._caches = [(F.pad(keys, room), F.pad(values, room)) for keys, values in self._caches]

    def _drop_ended(self) -> None:
        """Where it is worth a copy of the caches."""
        kept = self._left_B.nonzero()[:, 0]
        if len(kept) < 0.8 * len(self._left_B):
            ended = (self._left_B == 0).nonzero()[:, 0].tolist() if self._keeps else []
            self._dropped |= {int(self._alive_B[place]): self._of(place) for place in ended}
            self._left_B, self._at_B, self._alive_B = self._left_B[kept], self._at_B[kept], self._alive_B[kept]
            self._logits_BV, self._is_seen_BT = self._logits_BV[kept], self._is_seen_BT[kept]
            self._caches = [(keys[kept], values[kept]) for keys, values in self._caches]


def sample(
    model: TinyTransformer, prompts: Sequence[list[int]], most_tok: Sequence[int], generator: torch.Generator
) -> list[Continuation]:
    """Continue each prompt to its end."""
    rows = [Continuation() for _ in prompts]
    Sampling(model, prompts, rows, most_tok, generator).advance(max(most_tok))
    return rows
