"""What drafts cost, or yield, in an engine that is kept full: one engine, its drafter switched off and on in turns.

python -m benchmarks.drafts.cost --tails 8 25 --pairs 6

Model, engine options and requests in flight are those of `side_by_side`, prompts come in groups as in a training. This
recipe's drafter rests where it finds that it does not pay, so its first pairs are dearer than its last. `--source
suffix` is vLLM's suffix decoding (arXiv:2411.04975), which needs `pip install arctic-inference==0.1.1`. Writes
`cost.csv`, a row for each pair of blocks, of what it does not have yet; prints tokens per second with drafts over
those without.
"""

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.full_engines.run import FullEngine, chat_prompts
from benchmarks.support.runs_file import RunsFile
from benchmarks.support.supervised_training import ROOT, TAILS
from recipe.async_dapo.core.draft_price import MOST_DRAFT_TOK
from recipe.async_dapo.core.drafts import RequestName
from recipe.async_dapo_lab.quickstart.activation import run_environment
from recipe.async_dapo_lab.quickstart.model_and_data import Assets, prepare_assets
from recipe.async_dapo_lab.quickstart.overrides import RESPONSES_PER_PROMPT
from recipe.async_dapo_lab.quickstart.task import MAX_PROMPT_TOK

SETTLE_S, BLOCK_S = 1.0, 6.0
SOURCES = {  # vLLM's `speculative_config`, beside the length of a draft
    "siblings": {"method": "custom_class", "model": "recipe.async_dapo.engines.drafts.SiblingDrafts"},
    "suffix": {"method": "suffix"},
}


def grouped(prompts: list[list[int]]) -> Iterator[tuple[str, list[int]]]:
    """Requests without an end, n to a prompt, named as the recipe's clients name them."""
    for number in itertools.count():
        group = number // RESPONSES_PER_PROMPT
        prompt_ids = prompts[group % len(prompts)]
        name = RequestName(f"group-{group}", str(number), len(prompt_ids))
        yield name.prefix() + str(number), prompt_ids


async def blocks(assets: Assets, source: str, pairs: int) -> list[dict[str, float]]:
    """Each pair's tokens per second, in this process."""
    full = FullEngine(
        assets,
        engines=1,
        max_model_len=MAX_PROMPT_TOK + assets.shape.max_response_tok + MOST_DRAFT_TOK,
        speculative_config={**SOURCES[source], "num_speculative_tokens": MOST_DRAFT_TOK},
        worker_extension_cls="benchmarks.drafts.switched.Switch",
    )
    from recipe.async_dapo.engines.load_meter import LoadMeter

    meter = LoadMeter.attach(full.engine)
    await full.engine.collective_rpc("bind_drafts")
    rows = []
    async with full.filled(grouped(chat_prompts(assets))):
        for _ in range(pairs):
            row: dict[str, float] = {}
            for name, is_on in (("without_tok_per_s", False), ("with_tok_per_s", True)):
                await full.engine.collective_rpc("switch_drafts", args=(is_on,))
                await asyncio.sleep(SETTLE_S)
                meter.reset()
                row[name] = round(await full.tok_per_s(BLOCK_S))
            load = meter.load()
            [drafter_s] = await full.engine.collective_rpc("draft_step_s")
            rows.append(
                row
                | {
                    "drafted_tok": load.drafted_tok,
                    "accepted_tok": load.accepted_tok,
                    "generated_tok": load.generated_tok,
                    "drafter_ms": round(1000 * drafter_s, 3),
                }
            )
    return rows


def in_a_process(folder: Path, tail: int, source: str, pairs: int) -> list[dict[str, float]]:
    """As `full_engines` starts its own."""
    command = [sys.executable, "-m", "benchmarks.drafts.cost", "--here", "--tails", str(tail), "--pairs", str(pairs)]
    command += ["--source", source]
    environment = run_environment(os.environ, code_path=ROOT, output=folder, ray_folder=folder)
    ended = subprocess.run([*command, "--runs", str(folder)], env=environment, stdout=subprocess.PIPE, text=True)
    ended.check_returncode()
    rows: list[dict[str, float]] = json.loads(ended.stdout.splitlines()[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tails", type=int, nargs="+", choices=TAILS, default=[8, 25])
    parser.add_argument("--source", choices=SOURCES, default="siblings")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--output", type=Path, default=Path("outputs", "drafts"), help="of cost.csv")
    parser.add_argument("--runs", type=Path, default=Path("outputs", "drafts"), help="folder of model and data")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.runs.absolute()
    if options.here:
        assets = prepare_assets(folder, seed=0, shape=TAILS[options.tails[0]])
        print(json.dumps(asyncio.run(blocks(assets, options.source, options.pairs))))
        return
    file = RunsFile(options.output / "cost.csv")
    for tail in options.tails:
        if file.has(source=options.source, tail=tail):
            continue
        prepare_assets(folder, seed=0, shape=TAILS[tail])
        for number, row in enumerate(in_a_process(folder, tail, options.source, options.pairs)):
            file.add({"source": options.source, "tail": tail, "pair": number, **row})
            over = row["with_tok_per_s"] / row["without_tok_per_s"]
            print(f"{options.source}, tail {tail}, pair {number}: with drafts over without {over:.3f}", flush=True)


if __name__ == "__main__":
    main()
