"""Checks of the training and validation files before a cluster starts."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from omegaconf import DictConfig, ListConfig

from .config import AsyncDAPOConfig, ConfigError

MAX_TOKENIZED_ROWS = 50_000  # beyond it, only the longest prompts by characters are tokenized


def check_data(config: DictConfig, options: AsyncDAPOConfig) -> dict[str, Any]:
    """Check that files exist, have verl's columns and enough rows, and that prompts fit. Returns the first row.

    Raises:
        ConfigError: naming key, value and remedy.
    """
    required = [config.data.prompt_key, config.data.reward_fn_key, "reward_model"]
    tables = {}
    for key in ("train_files", "val_files"):
        files = config.data[key]
        files = list(files) if isinstance(files, list | ListConfig) else [files]
        tables[key] = [_read(f"data.{key}", str(file), required) for file in files]
    rows = [row for table in tables["train_files"] for row in table]
    total = len(rows)
    if total < options.target_valid_groups:
        raise ConfigError(
            "data.train_files",
            config.data.train_files,
            f"has {total} prompts, fewer than one batch; lower data.train_batch_size={options.target_valid_groups} or "
            "add data",
        )
    if not config.data.filter_overlong_prompts:
        _check_prompt_lengths(config, rows)
    return rows[0]


def _read(key: str, file: str, required: list[str]) -> list[dict[str, Any]]:
    path = Path(file).expanduser()
    if not path.exists():
        raise ConfigError(key, file, "no such file; make it with prepare_dapo_data.sh, or correct the path")
    if path.suffix != ".parquet":
        return [dict.fromkeys(required)]
    table = pq.read_table(path)
    missing = [column for column in required if column not in table.column_names]
    if missing:
        raise ConfigError(
            key, file, f"lacks the columns {missing}; it has {table.column_names}; see verl's data preparation"
        )
    if table.num_rows == 0:
        raise ConfigError(key, file, "is empty; prepare the data again")
    rows = table.to_pylist()
    if not isinstance(rows[0]["reward_model"], dict) or "ground_truth" not in rows[0]["reward_model"]:
        raise ConfigError(key, file, "column reward_model must hold {'ground_truth': ...}")
    return rows


def _check_prompt_lengths(config: DictConfig, rows: list[dict[str, Any]]) -> None:
    from verl.utils import hf_tokenizer

    limit_tok = config.data.max_prompt_length
    key = config.data.prompt_key
    model = config.actor_rollout_ref.model
    tokenizer = hf_tokenizer(model.tokenizer_path or model.path, trust_remote_code=model.trust_remote_code)
    longest_first = sorted(rows, key=lambda row: -len(str(row[key])))[:MAX_TOKENIZED_ROWS]
    for row in longest_first:
        tokens = tokenizer.apply_chat_template(
            row[key],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **config.data.apply_chat_template_kwargs,
        )
        if len(tokens) > limit_tok:
            raise ConfigError(
                "data.max_prompt_length",
                limit_tok,
                f"a prompt has {len(tokens)} tokens and would be cut: {str(row[key])[:80]!r}...; raise the limit, or set "
                "data.filter_overlong_prompts=True to leave such prompts out",
            )
