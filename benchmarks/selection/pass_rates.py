"""How often the starting models are right: how many of n answers to a prompt, over the first prompts of the data.

python -m benchmarks.selection.pass_rates

Writes `pass_rates.csv` in `assets/selection`.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.selection.summary import FOLDER, MEASURED_N
from benchmarks.strategies.run import TASKS
from recipe.async_dapo_lab.quickstart.model_and_data import Assets, prepare_assets
from recipe.async_dapo_lab.quickstart.task import compute_score

MEASURED_TASKS = ("quick start", "tail 25")
PROMPTS, BATCH = 256, 32


def right_answers(assets: Assets) -> Counter[int]:
    """Prompts by their number of right answers."""
    tokenizer = AutoTokenizer.from_pretrained(assets.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(assets.model).eval()
    rows = pd.read_parquet(assets.train_file)[:PROMPTS]
    truths = [reward["ground_truth"] for reward in rows["reward_model"]]
    problems = sorted(zip(truths, rows["prompt"], strict=True), key=lambda problem: len(problem[0]))
    torch.manual_seed(0)
    return sum(
        (_right(model, tokenizer, problems[first : first + BATCH]) for first in range(0, PROMPTS, BATCH)), Counter()
    )


@torch.no_grad()
def _right(model: Any, tokenizer: Any, problems: list[tuple[str, Any]]) -> Counter[int]:
    """An answer that is longer than the right one is wrong, and need not be finished."""
    prompts = [
        tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, tokenize=True, return_dict=False)
        for _, prompt in problems
    ]
    batch = tokenizer.pad({"input_ids": prompts}, return_tensors="pt")
    longest_tok = max(len(tokenizer.encode(truth, add_special_tokens=False)) for truth, _ in problems)
    answers = model.generate(
        **batch,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        num_return_sequences=MEASURED_N,
        max_new_tokens=longest_tok + 1,
    )
    texts = tokenizer.batch_decode(answers[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    right = [int(compute_score("", text, problems[i // MEASURED_N][0])["acc"]) for i, text in enumerate(texts)]
    return Counter(sum(right[first : first + MEASURED_N]) for first in range(0, len(right), MEASURED_N))


def main() -> None:
    rows = []
    for task in MEASURED_TASKS:
        counts = right_answers(prepare_assets(Path("outputs", "selection").absolute(), seed=0, shape=TASKS[task]))
        rows += [{"task": task, "right": right, "prompts": counts[right]} for right in range(MEASURED_N + 1)]
    pd.DataFrame(rows).to_csv(FOLDER / "pass_rates.csv", index=False)


if __name__ == "__main__":
    main()
