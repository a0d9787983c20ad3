"""Keys that older releases and other trainers of verl had are named with what stands for them."""

import pytest

from recipe.async_dapo.extensions.known_options import keys

NOTHING = "nothing reads it any more"
ROLLOUT = "actor_rollout_ref.rollout"

# An override with `+` -> what is said of it.
UNREAD = f"""
data.sampler.class_path=x -> {NOTHING}; verl's V1 trainer makes its own sampler: set data.shuffle and
rollout.nnodes=1 -> {NOTHING}; set {ROLLOUT}.nnodes
async_training.staleness_threshold=0.1 -> {NOTHING}; set async_dapo.max_staleness [versions] or
reward_model.overlong_buffer.enable=True -> {NOTHING}; set reward.reward_kwargs.overlong_buffer_cfg.enable
critic.model.fsdp_config.param_offload=True -> {NOTHING}; set critic.fsdp.param_offload
""".strip().splitlines()


@pytest.mark.parametrize("line", UNREAD)
def test_a_key_that_verl_had_once_is_named_with_what_stands_for_it(run, line):
    option, said = line.split(" -> ")
    config = run(f"+{option}")
    [error] = [str(one.error(config)) for one in keys.unread_keys(config)]
    assert error.startswith(f"{option}: {said}")
