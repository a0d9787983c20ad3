"""Values of a wrong type are refused in options that no table has, too."""

import pytest

from recipe.async_dapo.config.values import ConfigError, ConfigErrors
from recipe.async_dapo.extensions.known_options.keys import verls_own
from recipe.async_dapo.extensions.known_options.tree import KnownOptions
from recipe.async_dapo.startup.verl_options import TYPES


@pytest.mark.parametrize(("kind", "value", "said"), [(float, "nan", "a number;"), (bool, "off", "True or False, or")])
def test_what_is_no_number_or_no_switch_is_refused_by_name_in_options_that_no_table_has_too(run, kind, value, said):
    own = [key for key, default in verls_own("dp").items() if isinstance(default, kind) and key not in TYPES]
    others = {key for key in own if not key.startswith("async_dapo.")}
    assert len(others) > 30  # that nobody leaves out a kind of node
    with pytest.raises(ConfigErrors) as found:
        KnownOptions().check_types(run(*(f"++{key}={value}" for key in others)))
    assert {error.args[0] for error in found.value.errors if f"={value}: must be {said}" in str(error)} == others


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_what_is_no_finite_number_in_a_list_or_dict_is_refused_by_name(run, number):
    actor, vllm = "actor_rollout_ref.actor.optim.", "actor_rollout_ref.rollout.engine_kwargs.vllm."
    wrong = {
        f"{actor}betas": f"[{number},0.999]",
        f"{actor}override_optimizer_config.betas": f"[0.9,{number}]",
        f"{vllm}hf_overrides.rope_parameters": f"[{{factor:{number}}}]",
    }
    with pytest.raises(ConfigErrors) as found:
        KnownOptions().check_types(run(*(f"++{key}={value}" for key, value in wrong.items())))
    said = {error.args[0] for error in found.value.errors if "must hold finite numbers" in str(error)}
    assert said == wrong.keys()


def test_a_variable_of_the_environment_as_a_switch_is_refused_unless_it_is_decoded(run, monkeypatch):
    """verl would take its text, "False", for true."""
    monkeypatch.setenv("A_SWITCH", "False")
    key = "actor_rollout_ref.model.use_shm"
    assert key not in TYPES
    with pytest.raises(ConfigError, match=rf"^{key}=False: must be True or False, or null, not text; of a variable"):
        KnownOptions().check_types(run(f"{key}='${{oc.env:A_SWITCH}}'"))
    for decoded in ("'${oc.decode:${oc.env:A_SWITCH}}'", "${trainer.use_v1}", "'${oc.env:NOT_THERE}'"):
        KnownOptions().check_types(run(f"{key}={decoded}"))
