"""How long a decode step of an engine takes on this machine, over batch and context: a record for `calibrate`.

python -m benchmarks.gpu_record --model /models/Qwen3-8B --output record.jsonl

The model's folder needs `config.json` and tokenizer only: weights are made up (`load_format=dummy`), as their values do
not matter. About ten minutes on one GPU, as estimated: so far it ran on vLLM's CPU build alone. `python -m
recipe.async_dapo_lab.plan --calibrate record.jsonl` and `rehearsal.calibrate=record.jsonl` then use it in place of the
constants.

Every cell generates twice, a short and a long response for each request of the batch; the difference is decoding alone,
without prefill and start. A cell for warming up comes first and is not recorded.
"""

import argparse
import json
import random
import time
from pathlib import Path

from recipe.async_dapo_lab.gpu_check.speed import BATCHES, CONTEXTS_TOK, LONG_TOK, SHORT_TOK, Cell, cells, record_line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder with config.json and tokenizer")
    parser.add_argument("--output", type=Path, required=True, help="JSONL file")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.85)
    parser.add_argument("--enforce-eager", action="store_true", help="as rollout.enforce_eager of the run to come")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="requests at once")
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS_TOK, help="tokens, of each request")
    options = parser.parse_args()

    from vllm import LLM, SamplingParams

    engine = LLM(
        model=options.model,
        load_format="dummy",
        tensor_parallel_size=options.tensor_parallel_size,
        gpu_memory_utilization=options.gpu_memory_utilization,
        enforce_eager=options.enforce_eager,
        max_model_len=max(options.contexts) + LONG_TOK,
        max_num_seqs=max(options.batches),
        enable_prefix_caching=False,
    )
    cache = engine.llm_engine.vllm_config.cache_config
    vocabulary = engine.llm_engine.vllm_config.model_config.get_vocab_size()
    rng = random.Random(0)

    def generate_s(cell: Cell, tokens: int) -> float:
        prompts = [
            {"prompt_token_ids": [rng.randrange(vocabulary) for _ in range(cell.context_tok)]}
            for _ in range(cell.batch)
        ]
        params = SamplingParams(max_tokens=tokens, min_tokens=tokens, ignore_eos=True, detokenize=False)
        started = time.perf_counter()
        engine.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - started

    generate_s(Cell(batch=min(options.batches), context_tok=min(options.contexts)), LONG_TOK)
    kv_room_tok = cache.num_gpu_blocks * cache.block_size
    with options.output.open("w") as file:
        for cell in cells(kv_room_tok=kv_room_tok, batches=options.batches, contexts_tok=options.contexts):
            line = record_line(cell, short_s=generate_s(cell, SHORT_TOK), long_s=generate_s(cell, LONG_TOK))
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(line, flush=True)


if __name__ == "__main__":
    main()
