"""Checks of a start: every mistake is found at once, and the lab tells the run in words."""

import logging
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipe.async_dapo.config.values import ConfigError, ConfigErrors, check_each
from recipe.async_dapo.runtime import logs
from recipe.async_dapo.startup import preflight
from recipe.async_dapo.startup.preflight import findings
from recipe.async_dapo_lab import check
from recipe.async_dapo_lab.overrides import before_overrides
from recipe.async_dapo_lab.rehearsal.options import WITH_REHEARSAL

from ..support.composed_runs import (
    ComposeRun,
    compose_run,
    copied_metadata,
    override,
    select_node,
    select_what_is_written,
    valid_overrides,
)

ROLLOUT, ACTOR = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor."


def test_given_several_wrong_numbers_when_checked_then_each_has_a_line_and_no_check_reckons_with_them(run):
    wrong = ("data.train_batch_size=no", "trainer.test_freq=abc", f"{ACTOR}optim.lr=-1", f"{ROLLOUT}max_num_seqs=0")
    found = list(findings(run(*wrong)))
    assert {finding.name for finding in found} - {"keys"} == {"versions", "async_dapo options"}
    assert sorted(str(one.error).partition(":")[0] for one in found if one.error is not None) == sorted(wrong)


def test_given_a_check_that_takes_long_then_it_is_told_what_the_start_waits_for(monkeypatch):
    monkeypatch.setattr(logs, "SLOW_S", 0.01)
    told, is_told = list[str](), threading.Event()

    class Tells(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())
            is_told.set()

    def waits() -> str:
        assert is_told.wait(300)
        return "it goes on"

    monkeypatch.setattr(logs.logger, "handlers", [Tells()])
    monkeypatch.setattr(preflight, "check_versions", waits)
    with logs.quiet():  # as `check` asks for them
        assert next(findings(OmegaConf.create())).note == "it goes on"
    assert told == ["the start waits for the check of versions, for 0.01 s by now"]


def keys_of(node: object, above: str = "") -> Iterator[str]:
    """All that a configuration has, nodes too."""
    for name, value in node.items() if isinstance(node, dict) else ():
        yield f"{above}{name}"
        yield from keys_of(value, f"{above}{name}.")


def test_these_tests_look_options_up_as_omegaconf_does(run):
    config = run(
        "model_engine=megatron", "+ray_kwargs.ray_init.runtime_env={py_modules:[a],env_vars:{A: '${data.seed}'}}"
    )
    keys = [*keys_of(OmegaConf.to_container(config, resolve=False))]
    assert len(keys) > 500
    for key in (*keys, *(f"{key}.none" for key in keys), "", ".data", "data[seed]", "data.train_files[0]", "data."):
        found = []
        for select in (select_node, select_what_is_written):
            try:
                found.append(select(config, key))
            except (OmegaConfBaseException, TypeError) as error:
                found.append(str(error))
        ours, theirs = found
        assert ours is theirs or (type(ours) is type(theirs) and ours == theirs), key


def test_these_tests_copy_what_a_node_knows_of_itself_as_omegaconf_does(run):
    """As `deepcopy` does with a class that has no way of its own: by its attributes."""
    node = run().data
    node._metadata.resolver_cache["a"]["b"] = [1]
    for metadata in (node._metadata, node._get_node("seed")._metadata):
        ours, theirs = copied_metadata(metadata), deepcopy(vars(metadata))
        assert vars(ours) == theirs and type(ours) is type(metadata)
        assert type(ours.resolver_cache) is type(theirs["resolver_cache"]) is defaultdict
        ours.flags["readonly"] = True
        ours.resolver_cache["a"]["b"] = [2]
        assert vars(metadata) == theirs, "a copy shares nothing that is changed"


def test_several_errors_read_as_the_first_and_arrive_whole_from_another_process():
    def fail(key: str) -> None:
        raise ConfigError(key, 1, "is wrong; set 2")

    def crash() -> None:
        raise KeyError("a consequence")

    with pytest.raises(ConfigErrors) as found:
        check_each(
            [lambda: None, partial(fail, "a"), lambda: check_each([partial(fail, "b"), partial(fail, "c")]), crash]
        )
    assert str(found.value) == "a=1: is wrong; set 2"
    assert [error.args[0] for error in found.value.errors] == ["a", "b", "c"]
    with pytest.raises(KeyError):
        check_each([crash, partial(fail, "a")])


def test_given_flags_when_overrides_are_put_before_the_users_then_hydra_takes_all_in_one_piece():
    given = before_overrides(["--config-dir", "own", "--config-name", "mine", "data.seed=1", "data.seed=2"], "a.b=0")
    read = get_args_parser().parse_args(given)
    assert read.overrides == ["a.b=0", "data.seed=1", "data.seed=2"] and read.config_name == "mine"
    assert before_overrides(["--config-name", "mine"], "a.b=0") == ["--config-name", "mine", "a.b=0"]


@pytest.fixture(scope="module")
def run_on_gpus(files: Path) -> ComposeRun:
    gpus = ("trainer.device=cuda", "trainer.n_gpus_per_node=8", "rehearsal.accelerator=h100")
    valid = compose_run([*WITH_REHEARSAL, *valid_overrides(files), *gpus])
    return lambda *overrides: override(valid, overrides)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rehearsal.accelerator=h100"], "8 engines of 1 x h100 (assumed: no GPU here, rehearsal.accelerator=h100)"),
        (["actor_rollout_ref.rollout.tensor_model_parallel_size=2"], "4 engines of 2 x h100"),
    ],
)
def test_the_engines_are_those_that_the_options_come_to(run_on_gpus, overrides, words):
    assert check.in_words(run_on_gpus(*overrides)).startswith(words)


def test_an_engine_has_room_for_as_many_tokens_as_its_memory_holds(run_on_gpus):
    """Qwen3-8B at 0.5 of an H100's memory: (40 - 5 - 16.4) GB over 147,456 bytes a token."""
    config = run_on_gpus()
    config.actor_rollout_ref.model.path = "qwen3-8b"
    room_tok = int(re.search(r"room for ([\d,]+) tokens", check.in_words(config))[1].replace(",", ""))
    assert room_tok == pytest.approx((40e9 - 5e9 - 16.38e9) / 147_456, rel=0.01)
    assert ", 40% of what the planner assumes: gpu_memory_utilization=0.5, not 0.85." in check.in_words(config)
    config.actor_rollout_ref.rollout.gpu_memory_utilization = 0.85
    assert "the planner assumes" not in check.in_words(config)
    config.actor_rollout_ref.rollout.gpu_memory_utilization = 0.5
    config.actor_rollout_ref.model.path = "qwen3-32b"
    assert "it needs at least 2 GPUs per server" in check.in_words(config)
