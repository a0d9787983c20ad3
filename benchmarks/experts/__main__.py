"""How a mixture of experts reacts to its own older tokens, beside a dense model: `python -m benchmarks.experts`.

Tiny Qwen3 models with as many active weights, trained to copy a prompt with noise. Each then samples a batch, and is
updated a few times by policy gradient on batches of its own, for right tokens. After each update the first batch, which
is then a version older, is scored again: k3 and ESS ratio of all its tokens, as a run's metrics have them, the share of
tokens that are sent to other experts than before, and both with the experts that sampled them (router replay).
"""

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from recipe.async_dapo.training.importance_sampling import ratio_statistics, ratio_sums

VOCABULARY, PROMPT_TOK, RESPONSE_TOK, NOISE = 32, 8, 64, 0.3
PROMPTS, N, VERSIONS, IMITATED = 16, 8, 4, 300
RATES = (3e-4, 1e-3)
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "head_dim": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
}
EXPERTS = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
MODELS = {
    "dense": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
    "experts": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, **EXPERTS)),
}
Routes = list[Tensor]  # of each layer, the experts of each token


def log_probs(model: Any, tokens_BT: Tensor, routes: Routes | None = None) -> tuple[Tensor, Routes]:
    """Of the responses, [B, T] nats, and the experts that they took.

    Args:
        routes: to take instead of the router's own choice; weighted by its present scores.
    """
    taken: Routes = []

    def choose(_: Any, __: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, scores, chosen = output
        if routes is not None:
            chosen = routes[len(taken)]
            scores = logits.softmax(-1).gather(-1, chosen)
            scores = scores / scores.sum(-1, keepdim=True)
        taken.append(chosen)
        return logits, scores, chosen

    with ExitStack() as hooks:
        for layer in model.model.layers:
            if hasattr(layer.mlp, "gate"):
                hooks.callback(layer.mlp.gate.register_forward_hook(choose).remove)
        logits_BTV = model(tokens_BT, use_cache=False).logits[:, PROMPT_TOK - 1 : -1]
    response_BT = tokens_BT[:, PROMPT_TOK:]
    return logits_BTV.log_softmax(-1).gather(-1, response_BT.unsqueeze(-1)).squeeze(-1), taken


def prompts() -> Tensor:
    return torch.randint(VOCABULARY, (PROMPTS, PROMPT_TOK)).repeat_interleave(N, dim=0)


def answers(prompts_BT: Tensor) -> Tensor:
    return prompts_BT.repeat(1, RESPONSE_TOK // PROMPT_TOK)


def imitate(model: Any) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(IMITATED):
        prompt_BT = torch.randint(VOCABULARY, (PROMPTS, PROMPT_TOK))
        answer_BT = answers(prompt_BT)
        is_noise_BT = torch.rand(answer_BT.shape) < NOISE
        answer_BT = torch.where(is_noise_BT, torch.randint(VOCABULARY, answer_BT.shape), answer_BT)
        tokens_BT = torch.cat([prompt_BT, answer_BT], dim=1)
        logits_BTV = model(tokens_BT, use_cache=False).logits[:, PROMPT_TOK - 1 : -1]
        optimizer.zero_grad()
        cross_entropy(logits_BTV.flatten(0, 1), answer_BT.flatten()).backward()
        optimizer.step()


@torch.no_grad()
def sampled(model: Any) -> Tensor:
    length = {"min_new_tokens": RESPONSE_TOK, "max_new_tokens": RESPONSE_TOK}
    prompt_BT = prompts()
    asked = {"inputs": prompt_BT, "attention_mask": torch.ones_like(prompt_BT)} | length
    return model.generate(**asked, do_sample=True, top_k=0, pad_token_id=0, eos_token_id=None)


def update(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """One step of GRPO on fresh tokens."""
    tokens_BT = sampled(model)
    right_B = (tokens_BT[:, PROMPT_TOK:] == answers(tokens_BT[:, :PROMPT_TOK])).float().mean(1)
    groups = right_B.view(PROMPTS, N)
    advantage_B = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)).flatten()
    optimizer.zero_grad()
    (-advantage_B.unsqueeze(1) * log_probs(model, tokens_BT)[0]).mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def of_ratio(log_ratio_BT: Tensor) -> dict[str, float]:
    found = ratio_statistics(ratio_sums(log_ratio_BT, torch.ones_like(log_ratio_BT)))
    return {"k3": found["k3_kl"], "ess": found["ess_ratio"]}


def measured(kind: str, rate: float, seed: int) -> Iterator[dict[str, Any]]:
    """A row for each version that the first batch grows older."""
    torch.manual_seed(seed)
    model = MODELS[kind]()
    imitate(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    for _ in range(VERSIONS):  # until Adam's moments are those of a run
        update(model, optimizer)
    old_BT = sampled(model)
    with torch.no_grad():
        behaviour_BT, routes = log_probs(model, old_BT)
    for staleness in range(1, VERSIONS + 1):
        update(model, optimizer)
        with torch.no_grad():
            now_BT, taken = log_probs(model, old_BT)
            replayed_BT, _ = log_probs(model, old_BT, routes)
        row = {"model": kind, "rate": rate, "seed": seed, "staleness": staleness} | of_ratio(now_BT - behaviour_BT)
        if routes:
            pairs = zip(routes, taken, strict=True)
            moved = torch.stack([(old.sort(-1)[0] != new.sort(-1)[0]).any(-1) for old, new in pairs])
            row["moved"] = moved.any(0).float().mean().item()
            row |= {f"replayed_{name}": value for name, value in of_ratio(replayed_BT - behaviour_BT).items()}
        yield row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("outputs", "experts"), help="folder of runs.csv")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cells = product(MODELS, RATES, range(options.seeds))
    frame = pd.DataFrame([row for cell in cells for row in measured(*cell)])
    options.output.mkdir(parents=True, exist_ok=True)
    frame.round(6).to_csv(options.output / "runs.csv", index=False)
    print(frame.groupby(["model", "rate", "staleness"]).mean().drop(columns="seed").round(4).to_string())
