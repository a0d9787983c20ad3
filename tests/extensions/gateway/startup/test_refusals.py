"""What an agent program cannot be given is refused before a cluster starts."""

import pytest
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.startup.preflight import check_all, findings
from recipe.async_dapo_lab.gpu_check.families import TinyModel, qwen2_5_vl

from ....support.composed_runs import needs_checks, refusal
from ....support.harness import overrides_of

AGENT = "actor_rollout_ref.rollout.agent"
LOOPS = """
- name: program
  _target_: recipe.async_dapo.extensions.gateway.black_box.BlackBoxAgent
  agent: json:loads
"""

# transformers' processors, with numpy 2.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
    needs_checks,
    pytest.mark.skipif(not {"agent_programs", "http"} <= declared().keys(), reason="this copy has no agents to check"),
]


@pytest.fixture
def named(tmp_path) -> tuple[str, ...]:
    (tmp_path / "loops.yaml").write_text(LOOPS)
    return f"{AGENT}.default_agent_loop=program", f"{AGENT}.agent_loop_config_path={tmp_path}/loops.yaml"


def test_the_example_passes_the_check_of_agent_loops_at_start_up(run) -> None:
    """Its training, which its page prints, is nightly."""
    overrides = [word for word in overrides_of("agent_program") if word.startswith(AGENT)]
    found = {finding.name: finding for finding in findings(run(*overrides))}["agent loop and tools"]
    assert found.error is None and "solver" in found.note, found


@pytest.mark.skipif("pictures" not in declared(), reason="this copy serves none")
def test_given_prompts_with_pictures_then_the_loop_and_the_remedy_are_named(run, named, tmp_path) -> None:
    assets = TinyModel(make=qwen2_5_vl, has_pictures=True).write(tmp_path / "assets")
    data = (f"data.train_files={assets.train_file}", f"data.val_files={assets.validation_file}")
    message = refusal(run, *named, f"actor_rollout_ref.model.path={assets.model}", *data)
    assert "has a prompt with pictures" in message and "the agent loop program shows it none; leave them out" in message


def test_given_an_estimator_that_counts_rows_then_it_is_refused_and_one_of_the_users_is_warned_of(
    run, named, monkeypatch
) -> None:
    message = refusal(run, *named, "algorithm.adv_estimator=rloo")
    assert "algorithm.adv_estimator=rloo: counts each row of a trajectory in its group" in message
    assert message.endswith(
        "set grpo, which counts a trajectory once; with algorithm.norm_adv_by_std_in_grpo=False its "
        "advantages are rloo's times (n - 1) / n"
    )
    assert refusal(run, *named, "algorithm.adv_estimator=opo", "async_dapo.max_staleness=null").endswith(
        "set grpo, which counts a trajectory once"
    )
    check_all(run("algorithm.adv_estimator=rloo"))
    for right in ("grpo", "reinforce_plus_plus"):
        check_all(run(*named, f"algorithm.adv_estimator={right}"))
    monkeypatch.setitem(ADV_ESTIMATOR_REGISTRY, "of_a_user", lambda **_: None)
    told = [one.note for one in findings(run(*named, "algorithm.adv_estimator=of_a_user")) if "each chain" in one.note]
    assert len(told) == 1 and "algorithm.adv_estimator=of_a_user is given a row for each chain" in told[0]
