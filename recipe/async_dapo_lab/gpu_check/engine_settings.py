"""What the engine's process is told: which engine, and what to do with it."""

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

RUN = "gpu_check/01000000"  # names the run in stamps of weights


class Section(StrEnum):
    """In the order in which they run: each needs what those before it have left."""

    START = "start"
    GENERATE = "generate"
    LOG_PROBS = "log_probs"
    ABORT = "abort"
    KEEP = "keep"
    PREFIX_CACHE = "prefix_cache"
    SLEEP_1 = "sleep_1"
    SLEEP_2 = "sleep_2"
    WEIGHTS = "weights"
    SPEED = "speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    model: str  # folder
    device: str  # cpu or cuda
    dtype: str
    attention: str  # of transformers, for the trainer's log-probs
    facts: str  # file
    sockets: str  # folder, with a short path
    sections: tuple[str, ...]
    requests: int  # of the first section
    compared: int  # of these, with transformers
    prompt_tok: int
    response_tok: int
    max_model_len: int
    max_num_seqs: int
    bucket_mb: int  # of a weight transfer, as rollout.checkpoint_engine.update_weights_bucket_megabytes
    ballast_bytes: int
    batches: tuple[int, ...] = ()  # of the speed's cells
    contexts_tok: tuple[int, ...] = ()
    load_format: str = "auto"
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.5
    engine_kwargs: dict[str, Any] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, file: Path) -> Self:
        return cls(**json.loads(file.read_text()))
