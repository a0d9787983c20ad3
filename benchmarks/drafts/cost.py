"""What drafts cost, or yield, in an engine that is kept full: one engine, its drafter switched off and on in turns.

python -m benchmarks.drafts.cost --tails 8 25 --temperatures 1 2 --pairs 6

Model, engine options and requests in flight are those of `side_by_side`, prompts come in groups as in a training. At
temperature 2 the model's answers are noise, of which a quarter of the drafts is accepted. Needs
`pip install arctic-inference==0.1.1`. Writes `cost.csv`, a row for each pair of blocks, of what it does not have yet;
prints tokens per second with drafts over those without. Rows of `siblings` are of the recipe's former drafter (commit
74cf2d1).
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
from recipe.async_dapo.option_values import MOST_DRAFT_TOK, SPECULATIVE_CONFIGS, Drafts
from recipe.async_dapo_lab.quickstart.activation import run_environment
from recipe.async_dapo_lab.quickstart.model_and_data import Assets, prepare_assets
from recipe.async_dapo_lab.quickstart.overrides import RESPONSES_PER_PROMPT
from recipe.async_dapo_lab.quickstart.task import MAX_PROMPT_TOK

SETTLE_S, BLOCK_S = 1.0, 6.0
SOURCE = Drafts.SUFFIX


def grouped(prompts: list[list[int]]) -> Iterator[tuple[str, list[int]]]:
    """Requests without an end, n to a prompt."""
    for number in itertools.count():
        yield f"request-{number}", prompts[number // RESPONSES_PER_PROMPT % len(prompts)]


async def blocks(assets: Assets, temperature: float, pairs: int) -> list[dict[str, float]]:
    """Each pair's tokens per second, in this process."""
    full = FullEngine(
        assets,
        engines=1,
        temperature=temperature,
        max_model_len=MAX_PROMPT_TOK + assets.shape.max_response_tok + MOST_DRAFT_TOK,
        speculative_config=SPECULATIVE_CONFIGS[SOURCE],
        worker_extension_cls="benchmarks.drafts.switched.Switch",
    )
    from recipe.async_dapo.engines.load_meter import LoadMeter

    meter = LoadMeter.attach(full.engine)
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
            [drafter_s] = await full.engine.collective_rpc("drafter_step_s")
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


def in_a_process(folder: Path, tail: int, temperature: float, pairs: int) -> list[dict[str, float]]:
    """As `full_engines` starts its own."""
    command = [sys.executable, "-m", "benchmarks.drafts.cost", "--here", "--tails", str(tail), "--pairs", str(pairs)]
    command += ["--temperatures", str(temperature)]
    environment = run_environment(os.environ, code_path=ROOT, output=folder, ray_folder=folder)
    ended = subprocess.run([*command, "--runs", str(folder)], env=environment, stdout=subprocess.PIPE, text=True)
    ended.check_returncode()
    rows: list[dict[str, float]] = json.loads(ended.stdout.splitlines()[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tails", type=int, nargs="+", choices=TAILS, default=[8, 25])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 2.0])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--output", type=Path, default=Path("outputs", "drafts"), help="of cost.csv")
    parser.add_argument("--runs", type=Path, default=Path("outputs", "drafts"), help="folder of model and data")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.runs.absolute()
    if options.here:
        assets = prepare_assets(folder, seed=0, shape=TAILS[options.tails[0]])
        print(json.dumps(asyncio.run(blocks(assets, options.temperatures[0], options.pairs))))
        return
    file = RunsFile(options.output / "cost.csv")
    for tail, temperature in itertools.product(options.tails, options.temperatures):
        cell = {"source": SOURCE, "tail": tail, "temperature": temperature}
        if file.has(**cell):
            continue
        prepare_assets(folder, seed=0, shape=TAILS[tail])
        for number, row in enumerate(in_a_process(folder, tail, temperature, options.pairs)):
            file.add({**cell, "pair": number, **row})
            over = row["with_tok_per_s"] / row["without_tok_per_s"]
            print(f"tail {tail}, temperature {temperature}, pair {number}: {over:.3f}", flush=True)


if __name__ == "__main__":
    main()
