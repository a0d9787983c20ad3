"""The bound without idle time: tokens per second of the same engines, kept full, with the machine to themselves.

python -m benchmarks.full_engines --tails 8 25 2 --engines 1 --repetitions 3

Model, prompts, engine options and requests in flight are those of `side_by_side`; whenever a request ends the next one
starts. Tokens are counted in a window that begins when every place has been filled for a while. Writes `bound.csv`;
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
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser

from benchmarks.support.runs_file import RunsFile
from benchmarks.support.supervised_training import ROOT, STREAM_INTERVAL, TAILS
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


class FullEngine:
    """One of the engines, in this process: whenever a request ends the next one starts.

    Args:
        temperature: of the sampling.
        arguments: of vLLM, beside or in place of those that a training run gives.
    """

    def __init__(self, assets: Assets, *, engines: int, temperature: float = 1.0, **arguments: object) -> None:
        from verl.plugin.platform import get_platform

        os.environ.update(get_platform().rollout_env_vars())  # as verl does before it starts an engine
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        given = {"model": str(assets.model), "stream_interval": STREAM_INTERVAL}
        every = given | engine_options(assets, engines=engines) | arguments
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**every))
        self._places, self._most_tok = REQUESTS_IN_FLIGHT // engines, assets.shape.max_response_tok
        self._temperature = temperature
        self._tok = 0

    @asynccontextmanager
    async def filled(self, requests: Iterable[tuple[str, list[int]]]) -> AsyncIterator[None]:
        """All places are, for a while already.

        Args:
            requests: without an end, name and prompt of each.
        """
        waiting = iter(requests)
        async with asyncio.TaskGroup() as tasks:
            places = [tasks.create_task(self._keep_filled(waiting)) for _ in range(self._places)]
            await asyncio.sleep(RAMP_UP_S)
            yield
            for place in places:
                place.cancel()
        self.engine.shutdown()

    async def _keep_filled(self, waiting: Iterator[tuple[str, list[int]]]) -> None:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=self._temperature,
            max_tokens=self._most_tok,
            logprobs=0,
            output_kind=RequestOutputKind.DELTA,
            detokenize=False,  # this and the next: the lightest front end, which is this recipe's
            flat_logprobs=True,
        )
        for name, prompt_ids in waiting:
            async for output in self.engine.generate(TokensPrompt(prompt_token_ids=prompt_ids), params, name):
                self._tok += len(output.outputs[0].token_ids)

    async def tok_per_s(self, window_s: float) -> float:
        """Counted from now on."""
        before_tok, began = self._tok, time.monotonic()
        await asyncio.sleep(window_s)
        return (self._tok - before_tok) / (time.monotonic() - began)


async def full_engine(assets: Assets, *, engines: int) -> float:
    """Tokens per second of one of the engines, in this process."""
    prompts, full = chat_prompts(assets), FullEngine(assets, engines=engines)
    async with full.filled((f"request-{number}", prompts[number % len(prompts)]) for number in itertools.count()):
        print(READY, flush=True)
        await asyncio.to_thread(sys.stdin.readline)  # until all engines are
        return await full.tok_per_s(WINDOW_S)


def measure_all(assets: Assets, *, tail: int, engines: int, folder: Path) -> int:
    """Tokens per second of all engines together, each in a process of its own, at the same time."""
    command = [sys.executable, "-m", "benchmarks.full_engines", "--one-of", str(engines), "--tails", str(tail)]
    environment = run_environment(os.environ, code_path=ROOT, output=folder, ray_folder=folder)
    processes = [
        subprocess.Popen(
            [*command, "--runs", str(folder)],
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tails", type=int, nargs="+", choices=TAILS, default=list(TAILS))
    parser.add_argument("--engines", type=int, nargs="+", default=[1])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("outputs", "full_engines"))
    parser.add_argument("--runs", type=Path, default=Path("outputs", "full_engines"), help="folder of model and data")
    parser.add_argument("--one-of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.runs.absolute()
    if options.one_of:
        assets = prepare_assets(folder, seed=0, shape=TAILS[options.tails[0]])
        print(json.dumps({"tok_per_s": asyncio.run(full_engine(assets, engines=options.one_of))}))
        return
    bounds = RunsFile(options.output / "bound.csv")
    for repetition in range(options.repetitions):
        for tail in options.tails:
            assets = prepare_assets(folder, seed=0, shape=TAILS[tail])
            for engines in options.engines:
                cell = {"tail": tail, "engines": engines, "repetition": repetition}
                if not bounds.has(**cell):
                    bounds.add(cell | {"tok_per_s": measure_all(assets, tail=tail, engines=engines, folder=folder)})
