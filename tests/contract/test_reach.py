"""How many of verl's scripts the recipe takes: what a script's options are, and what becomes of them."""

import pytest

from benchmarks.reach.__main__ import verdict
from benchmarks.reach.scripts import options_of
from benchmarks.reach.summary import ACCEPTED, IGNORED, REFUSED

SCRIPT = r"""
set -xeuo pipefail
DEVICE=$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)
[ "$DEVICE" = gpu ] && n=8 || n=16
cat > notes.txt <<< "of a shell that finds no program"
ray start --head
MORE=(actor_rollout_ref.rollout.n=$((n / 2)))
python3 -m verl.trainer.main_ppo --config-name='ppo_megatron_trainer.yaml' \
    data.train_files="['$HOME/a.parquet', '$PWD/b.parquet', '$(pwd)/c.parquet', '/root/d.parquet']" \
    "${MORE[@]}" "$@" 2>&1 | tee log.txt
"""


def test_a_script_is_expanded_by_a_shell_that_runs_no_program(tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    files = f"data.train_files={[f'/home/{name}.parquet' for name in 'abcd']}"
    assert [*options_of(tmp_path / "run.sh")] == ["model_engine=megatron", files, "actor_rollout_ref.rollout.n=4"]
    assert [file.name for file in tmp_path.iterdir()] == ["run.sh"]


@pytest.mark.slow
def test_what_verl_does_not_read_is_told_apart_from_what_the_recipe_refuses():
    fits = ["data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8", "trainer.logger=console"]
    fits += ["actor_rollout_ref.actor.use_dynamic_bsz=True", "trainer.n_gpus_per_node=1", "data.max_prompt_length=8"]
    fits += ["actor_rollout_ref.rollout.tensor_model_parallel_size=1", "data.max_response_length=8"]
    assert verdict(fits) == {"training": "dp", "verdict": ACCEPTED, "left_out": 0, "reasons": ""}
    gone = [*fits, "trainer.no_such_option=1", "+actor_rollout_ref.rollout.engine_kwargs.vllm.no_such_argument=1"]
    assert verdict([*gone, "+trainer.balance_batch=True"]) == verdict(fits) | {"left_out": 2}
    assert verdict([*fits, "trainer.balance_batch=False"])["verdict"] == IGNORED
    refused = verdict([*fits, "trainer.balance_batch=False", "actor_rollout_ref.rollout.name=sglang"])
    assert refused["verdict"] == REFUSED and str(refused["reasons"]).startswith("actor_rollout_ref.rollout.name=sglang")
