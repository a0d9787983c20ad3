"""Whether shares by name fit batch and data, before a cluster starts."""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from omegaconf import DictConfig

from ...config.options import AsyncDAPOConfig
from ...config.values import check_each
from ...core.trajectory import SOURCE
from ...startup.preflight import Check, Seen
from ...startup.verl_options import listed
from .named_shares import check_batch, check_names


def with_checks(checks: dict[str, Check], config: DictConfig, options: AsyncDAPOConfig, seen: Seen) -> dict[str, Check]:
    """Those of the run, and one more where shares are named."""
    asked = options.sources
    if not isinstance(asked, dict):
        return checks

    def shares() -> None:
        there = sources_of(config)
        names = [] if there is None else [partial(check_names, asked, there)]
        check_each([partial(check_batch, asked, options.target_valid_groups), *names])

    return checks | {"shares of sources": shares}


def sources_of(config: DictConfig) -> set[str] | None:
    """Of the training data, if they are Parquet files that are here; None: they are known once verl has loaded them."""
    if config.data.custom_cls.path is not None:
        return None
    found: set[str] = set()
    try:
        for file in map(Path, map(str, listed(config.data.train_files))):
            column = pq.read_table(file.expanduser(), columns=[SOURCE])[SOURCE]
            found |= set(map(str, pc.unique(column).to_pylist()))
    except (OSError, KeyError, pa.ArrowException):  # the check of the data tells what is wrong with them
        return None
    return found
