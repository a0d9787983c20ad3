"""No set of options ends a check in a traceback."""

import random
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hydra.errors import HydraException
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from recipe.async_dapo.startup import overrides as startup_overrides
from recipe.async_dapo.startup.overrides import CommandLine, compose_what_is_right
from recipe.async_dapo.startup.preflight import findings
from recipe.async_dapo.startup.rules import RULES
from recipe.async_dapo.startup.verl_options import FIXED, NODES, TYPES

from ....support.composed_runs import compose_run, of_options, valid_overrides
from ....support.refusals import in_full
from ....support.refused_options import LINES
from ..support.misspelt_sets import VALUES, misspelt_set

choices = pytest.importorskip("recipe.async_dapo.extensions.known_values.choices", reason="may be absent")
ignored = pytest.importorskip("recipe.async_dapo.extensions.old_options.ignored", reason="may be absent")
rows = pytest.importorskip("recipe.async_dapo.extensions.known_values.rows", reason="may be absent")
OWN = [f"async_dapo.{name}" for name in compose_run([]).async_dapo]
KEYS = [
    *OWN,
    *NODES,
    *TYPES,
    *(key for key, *_ in (*FIXED, *ignored.IGNORED, *ignored.SHADOWED, *choices.CHOICES, *choices.TRIED)),
    *(one.key for one in (*RULES, *rows.ROWS)),
]
WORDS = sorted({word for line in LINES for word in in_full(line.replace("->", " ")) if not word.startswith("-")})
ANY = st.one_of(st.sampled_from(WORDS), st.builds("++{}={}".format, st.sampled_from(KEYS), st.sampled_from(VALUES)))


def is_whole(error: str) -> bool:
    """With a key, and a remedy: what a check did not foresee has none."""
    return re.match(r"[\w.' -]+=.*: .+", error, re.DOTALL) is not None and "<not checked>" not in error


def judged(run, overrides: list[str], judge: Callable[[DictConfig], list[str]]) -> None:
    with suppress(OmegaConfBaseException, HydraException):  # an override of a node that another one has replaced
        config = run(*overrides)
        errors = judge(config)
        assert all(map(is_whole, errors)), errors


@given(st.lists(ANY, min_size=1, max_size=6))
@example(["++critic.ulysses_sequence_parallel_size=.inf"])  # found at night
@example(["model_engine=megatron", "++actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=auto"])
@example(["model_engine=megatron", "++actor_rollout_ref.actor.megatron.expert_model_parallel_size=auto"])
@settings(deadline=None, max_examples=20)
def test_no_set_of_options_ends_in_a_traceback(run, overrides):
    judged(run, overrides, of_options)


@pytest.fixture(scope="module")
def shared():
    """What all sets can have together: verl's yaml is read once, and each reward function has one process, which takes
    longer to start than all checks.
    """
    pytest.importorskip("recipe.async_dapo.extensions.refused_overrides.words", reason="may be absent")
    trial = pytest.importorskip("recipe.async_dapo.extensions.reward_processes.trial", reason="may be absent")
    kept: dict[str, Any] = {}

    class Kept(trial.RewardProcesses):
        def close(self) -> None:
            """Others go on with it."""

    def processes(function: Any, *, limit: int) -> Any:
        return kept.setdefault(f"{function}", Kept(function, limit=limit))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(startup_overrides, "composed", lambda line, texts: compose_run(texts))
        patch.setattr(trial, "RewardProcesses", processes)
        yield
    for one in kept.values():
        super(Kept, one).close()


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(8))
def test_each_of_two_thousand_misspelt_keys_is_named_and_no_check_ends_in_a_traceback(files, shared, part):
    """All checks, of the valid run with options of its own, a value replaced, a key misspelt, and what rows refuse."""
    for seed in range(part * 250, (part + 1) * 250):
        rng = random.Random(seed)
        drawn = misspelt_set(rng)
        texts = [*valid_overrides(files), *drawn.overrides, *rng.sample(WORDS, rng.randint(0, 2))]
        config, errors = compose_what_is_right(CommandLine(overrides=tuple(texts)))
        assert config is not None
        said = [*errors, *(one.error for one in findings(config) if one.error is not None)]
        assert any(map(drawn.is_named, said)), (seed, texts, said)
        assert all(is_whole(str(error)) for error in said), (seed, texts, said)
