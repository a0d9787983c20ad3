"""The bound without idle time: tokens per second of the same engines, kept full, with the machine to themselves.

Model, prompts, engine options and requests in flight are those of `side_by_side`; whenever a request ends the next one
starts. Tokens are counted in a window that begins when every place has been filled for a while.
`side_by_side` puts each of its runs between two such measurements.
"""

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser

from benchmarks.support.supervised_training import ROOT, STREAM_INTERVAL, TAILS
from recipe.async_dapo_lab.command_line import path
from recipe.async_dapo_lab.quickstart.activation import run_environment
from recipe.async_dapo_lab.quickstart.model_and_data import Assets, prepare_assets
from recipe.async_dapo_lab.quickstart.overrides import REQUESTS_IN_FLIGHT, RunSettings, verl_overrides

RAMP_UP_S, WINDOW_S = 15.0, 15.0  # the longest responses take about ten seconds
READY = "ready"
ROLLOUT = "actor_rollout_ref.rollout."
ENGINE_OPTIONS = ("dtype", "enforce_eager", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "seed")


def engine_options(assets: Assets, *, engines: int) -> dict[str, object]:
    """What a training run gives its engines."""
    nowhere = Path("unused")
    run = RunSettings(assets=assets, output=nowhere, ray_folder=nowhere, steps=1, seed=0, engines=engines)
    given = OverridesParser.create().parse_overrides(list(verl_overrides(run)))
    rollout = {one.key_or_group.removeprefix(ROLLOUT): one.value() for one in given}
    executor = rollout["engine_kwargs.vllm.distributed_executor_backend"]
    return {name: rollout[name] for name in ENGINE_OPTIONS} | {"distributed_executor_backend": executor}


def chat_prompts(assets: Assets) -> list[list[int]]:
    """The tokens of the task's prompts."""
    import pyarrow.parquet
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(assets.model)
    rows = pyarrow.parquet.read_table(assets.train_file).to_pylist()
    return [tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False) for row in rows]


async def full_engine(assets: Assets, *, engines: int) -> float:
    """Tokens per second of one of the engines, in this process: whenever a request ends the next one starts."""
    from verl.plugin.platform import get_platform

    os.environ.update(get_platform().rollout_env_vars())  # as verl does before it starts an engine
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    options = {"stream_interval": STREAM_INTERVAL, **engine_options(assets, engines=engines)}
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(assets.model), **options))
    params = SamplingParams(
        temperature=1.0,
        max_tokens=assets.shape.max_response_tok,
        logprobs=0,
        output_kind=RequestOutputKind.DELTA,
        detokenize=False,  # this and the next: the lightest front end, which is this recipe's
        flat_logprobs=True,
    )
    prompts, numbers, generated_tok = chat_prompts(assets), itertools.count(), 0

    async def keep_filled() -> None:
        nonlocal generated_tok
        for number in numbers:
            prompt = TokensPrompt(prompt_token_ids=prompts[number % len(prompts)])
            async for output in engine.generate(prompt, params, f"request-{number}"):
                generated_tok += len(output.outputs[0].token_ids)

    async with asyncio.TaskGroup() as tasks:
        places = [tasks.create_task(keep_filled()) for _ in range(REQUESTS_IN_FLIGHT // engines)]
        await asyncio.sleep(RAMP_UP_S)
        print(READY, flush=True)
        await asyncio.to_thread(sys.stdin.readline)  # until all engines are
        before_tok, began = generated_tok, time.monotonic()
        await asyncio.sleep(WINDOW_S)
        tok_per_s = (generated_tok - before_tok) / (time.monotonic() - began)
        for place in places:
            place.cancel()
    engine.shutdown()
    return tok_per_s


def measure_all(assets: Assets, *, tail: int, engines: int, folder: Path) -> int:
    """Tokens per second of all engines together, each in a process of its own, at the same time."""
    command = [sys.executable, "-m", "benchmarks.full_engines", "--engines", str(engines), "--tail", str(tail)]
    environment = run_environment(os.environ, code_path=ROOT, output=folder, ray_folder=folder)
    processes = [
        subprocess.Popen(
            [*command, "--folder", str(folder)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(engines)
    ]
    for process in processes:
        if not any(line.strip() == READY for line in process.stdout or ()):
            raise RuntimeError("an engine failed: see its error above")
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    rates = [json.loads(process.communicate()[0].splitlines()[-1])["tok_per_s"] for process in processes]
    return round(sum(rates))


def main() -> None:
    """One of the engines that `measure_all` starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, required=True, help="that run at the same time")
    parser.add_argument("--tail", type=int, choices=TAILS, required=True)
    parser.add_argument("--folder", type=path, required=True, help="of model and data")
    options = parser.parse_args()
    assets = prepare_assets(options.folder, seed=0, shape=TAILS[options.tail])
    print(json.dumps({"tok_per_s": asyncio.run(full_engine(assets, engines=options.engines))}))
