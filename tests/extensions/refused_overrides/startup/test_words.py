"""What Hydra cannot read or apply has a remedy of ours, and what else is wrong is told beside it."""

import random
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.startup import overrides
from recipe.async_dapo.startup.overrides import CommandLine, compose_what_is_right
from recipe.async_dapo.startup.preflight import findings
from recipe.async_dapo_lab.overrides import compose_overrides

from ....support.composed_runs import compose_run
from ...known_options.support.misspelt_sets import misspelt_set


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.train_files=~/x", "=~/x: write $HOME in place of ~, or quote it twice: 'data.train_files=\"~/x\"'"),
        ("actor_rollout_ref.model.path=<MODEL>/x", "=<MODEL>/x: put a value of yours in place of <MODEL>"),
        ("trainer.save_freq = 3", "= 3: leave out the blanks around ="),
        ("trainer.project_name=a;b", "=a;b: Hydra cannot read the value (token recognition error at: ';'); quote it"),
        ("trainer.save_freq=1,2", "=1,2: a run has one value; write a list as [a,b], and a text with a comma as"),
        ("trainer.save_freq=[1", "=[1: Hydra cannot read the value (no viable"),
        ("+trainer.save_freq=3", "=3: the option exists; leave out the +"),
        ("~trainer.savefreq", "=<none>: nothing reads it; did you mean trainer.save_freq?"),
        ("actor_rollout_ref.rollout.mtp.enable=True", "=True: follows actor_rollout_ref.model.mtp; set that"),
        (
            "actor_rollout_ref.model.override_config.attn_implementation=sdpa",
            "=sdpa: verl reads it, but its yaml does not have it; write +actor_rollout_ref.model.override_config.attn_",
        ),
        ("trainer.logger.x=1", "=1: Hydra says: invalid literal"),
    ],
)  # fmt: skip
def test_what_hydra_cannot_read_or_apply_has_a_remedy_of_ours(override, said):
    config, errors = compose_what_is_right(CommandLine.of(["trainer.nnodes=3", override, "async_dapo.max_staleness=2"]))
    key = override.lstrip("+~").partition("=")[0].strip()
    [error] = errors
    assert str(error).startswith(f"{key}{said}")
    assert (config.trainer.nnodes, config.async_dapo.max_staleness) == (3, 2)


def before_verls_own(config: DictConfig):
    """Checks of the recipe's tables; another test asks for all."""
    return takewhile(lambda found: found.name != "verl's own checks", findings(config))


@pytest.fixture(scope="module")
def cached_yaml():
    """verl's yaml is read once: that takes half a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overrides, "composed", lambda line, texts: compose_run(texts))
        yield


@given(st.integers(0, 2**32))
@settings(max_examples=15)
def test_a_misspelt_key_is_named_whatever_stands_beside_it(cached_yaml, seed):
    drawn = misspelt_set(random.Random(seed))
    config, errors = compose_what_is_right(CommandLine(overrides=tuple(drawn.overrides)))
    assert isinstance(config, DictConfig)
    said = [*errors, *(one.error for one in before_verls_own(config) if one.error is not None)]
    assert any(map(drawn.is_named, said)), said
    assert not any("<not checked>" in str(error) for error in said), said


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rollout.n=8", "^rollout.n=8: nothing reads it; did you mean actor_rollout_ref.rollout.n\\?$"),
        ("model_engine=fsdp", "^model_engine=fsdp: .*Could not find 'model_engine/fsdp' Available options .*: dp"),
        ("data.train_batch_size", "^data.train_batch_size=<missing>: give it a value: KEY=VALUE$"),
    ],
)
def test_what_hydra_refuses_is_told_with_a_remedy(override, said):
    with pytest.raises(ConfigError, match=said):
        compose_overrides(["data.train_batch_size=8", override])
