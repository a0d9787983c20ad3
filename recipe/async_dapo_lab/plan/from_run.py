"""A real run in place of assumptions: sizes, lengths, valid share and engines' speed, from the folder of its record."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ...async_dapo.config.values import ConfigError
from ...async_dapo.record.keys import CALLS_S, DRAFT_TOK_PER_STEP, TURNS
from ...async_dapo.record.run_files import RUN_FILE, STEPS_FILE
from ..run_files import LENGTHS_FILE

PROMPT_TOK = "prompt_length/mean"
# The planner's input -> the setting in `run.json`.
SETTINGS = {
    "train_batch_size": "data.train_batch_size",
    "rollout_n": "rollout.n",
    "max_response_length": "data.max_response_length",
    "servers": "engines",
    "max_num_seqs": "max_num_seqs",
    "gpu_memory_utilization": "rollout.gpu_memory_utilization",
}


def inputs_of_run(folder: str) -> dict[str, Any]:
    """What a run's folder tells the planner: its inputs, by name.

    Raises:
        ConfigError: naming the file that is missing or cannot be read.
    """
    place = Path(folder)
    run = _read_json(place / RUN_FILE)[0]
    groups = _read_json(place / LENGTHS_FILE)
    if not groups or not (place / STEPS_FILE).is_file():
        raise ConfigError("from_run", place, "holds no step yet; wait for its first ones")
    settings = run["settings"]
    inputs = {name: settings[key] for name, key in SETTINGS.items() if key in settings}
    inputs |= {
        "lengths": str(place / LENGTHS_FILE),
        "calibrate": str(place / STEPS_FILE),
        "valid_share": max(sum(group["is_valid"] for group in groups), 1) / len(groups),
        "tensor_parallel_size": run["gpus"] // settings["engines"],
    }
    steps = [step["data"] for step in _read_json(place / STEPS_FILE)]
    inputs |= _prompts(steps) | _tools(steps) | _drafts(steps)
    if Path(settings["model"], "config.json").is_file():
        inputs["model"] = settings["model"]
    return inputs


def _prompts(steps: Sequence[Mapping[str, float]]) -> dict[str, int]:
    lens_tok = [data[PROMPT_TOK] for data in steps if PROMPT_TOK in data]
    return {"prompt_len_tok": round(fmean(lens_tok))} if lens_tok else {}


def _tools(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Calls between the turns of a trajectory, all of which take the mean time."""
    several = [data for data in steps if data.get(TURNS, 1.0) > 1.0]
    if not several:
        return {}
    calls = fmean(data[TURNS] for data in several) - 1
    return {
        "tool_calls": max(1, round(calls)),
        "tool_median_s": fmean(data[CALLS_S] for data in several) / calls,
        "tool_sigma": 0.0,
    }


def _drafts(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What engines that draft have accepted."""
    drafted = [data[DRAFT_TOK_PER_STEP] for data in steps if DRAFT_TOK_PER_STEP in data]
    return {"drafts_accepted": fmean(drafted) - 1} if drafted else {}


def _read_json(path: Path) -> list[Any]:
    """The values of a file with one value, or with one a line; a last line that is being written is left out."""
    try:
        text = path.read_text()
        if path.suffix == ".json":
            return [json.loads(text)]
        return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]
    except FileNotFoundError:
        raise ConfigError(
            "from_run", path.parent, f"holds no {path.name}; name the folder of a run (async_dapo.report_dir)"
        ) from None
    except (ValueError, OSError) as error:
        raise ConfigError("from_run", path.parent, f"{path.name} cannot be read ({error})") from error
