"""A reward function that cannot work is refused before Ray starts."""

import pytest

from recipe.async_dapo.startup.preflight import check_all

from ..support.composed_runs import rows, write_parquet
from .test_options import refusal

SLEEPS = "import time; time.sleep(30)"
# (body of the reward function, what the message must contain)
BAD_REWARDS = [
    ("return {'score': 1.0}", "algorithm.filter_groups.metric=acc: the reward function returns only ['score']"),
    ("return {'acc': 1.0}", "the reward function returns ['acc'] without `score`; add it"),
    ("return {'score': None, 'acc': 1.0}", "the reward function returns score=None; return a finite number"),
    ("return {'score': 1.0, 'acc': 'yes'}", "the reward function returns acc='yes'; return a finite number"),
    ("return float('nan')", "the reward function returns acc=nan; return a finite number"),
    (
        "return {'score': 1.0, 'acc': 1.0, 'how': object()}",
        "of the reward function's result=how: is a builtins.object, which no checkpoint can hold: use numbers",
    ),
    (
        "return {'score': 1.0, 'acc': 1.0, 'reward': 0.5}",
        "the reward function returns `reward`, verl's name for the score itself; rename it",
    ),
    ("return None", "the reward function returns acc=None; return a finite number"),
    ("return solution_str[0]", "raised IndexError('string index out of range') at reward.py:2 on an empty answer"),
    ("raise KeyboardInterrupt", "raised KeyboardInterrupt() at reward.py:2 on an empty answer"),
    ("raise SystemExit(0)", "raised SystemExit(0) at reward.py:2 on an empty answer"),
    ("import os; os._exit(3)", "process has ended (exit code 3) on an empty answer"),
    (SLEEPS, "gave no answer within async_dapo.reward.timeout_s=0.3"),
]


def write_reward(folder, body, *, kind="def"):
    path = folder / "reward.py"
    path.write_text(f"{kind} compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    {body}\n")
    return path


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize(("body", "message"), BAD_REWARDS, ids=[body for body, _ in BAD_REWARDS])
def test_a_reward_function_that_cannot_work_is_refused(run, tmp_path, kind, body, message):
    path = write_reward(tmp_path, body, kind=kind)
    limit = ["async_dapo.reward.timeout_s=0.3"] if body == SLEEPS else []
    refused = refusal(run, f"reward.custom_reward_function.path={path}", *limit)
    assert message in refused
    assert refused.startswith(("algorithm.filter_groups.metric=acc: ", f"reward.custom_reward_function.path={path}: "))


def test_a_reward_function_that_needs_the_main_thread_has_it(run, tmp_path):
    path = write_reward(tmp_path, "import signal; signal.signal(signal.SIGALRM, signal.SIG_DFL); return 0.5")
    check_all(run(f"reward.custom_reward_function.path={path}"))


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_reward_function_that_returns_a_number_returns_acc(run, tmp_path, kind):
    path = write_reward(tmp_path, "return 0.5", kind=kind)
    check_all(run(f"reward.custom_reward_function.path={path}"))


def test_fields_beside_the_score_may_be_numbers_texts_and_lists_of_these(run, tmp_path):
    path = write_reward(tmp_path, "return {'score': 1, 'acc': 1, 'how': ['a', 'b'], 'why': '', 'steps': [0, 1]}")
    check_all(run(f"reward.custom_reward_function.path={path}"))


def test_given_another_metric_when_the_reward_function_returns_it_then_it_is_accepted(run, tmp_path):
    path = write_reward(tmp_path, "return {'score': 1, 'steps_right': 3}")
    check_all(run(f"reward.custom_reward_function.path={path}", "algorithm.filter_groups.metric=steps_right"))


def test_given_no_filter_when_the_metric_is_missing_then_it_is_accepted(run, tmp_path):
    path = write_reward(tmp_path, "return {'score': 1}")
    check_all(run(f"reward.custom_reward_function.path={path}", "algorithm.filter_groups.enable=False"))


def test_given_a_function_that_runs_in_verls_reward_workers_then_it_is_not_tried(run, tmp_path):
    path = write_reward(tmp_path, "raise OSError")
    check_all(run(f"reward.custom_reward_function.path={path}", "async_dapo.reward.processes=0"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot load it: FileNotFoundError"),
        ("def another(): pass", "has no attribute 'compute_score'"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("def compute_score(:", "SyntaxError"),
    ],
    ids=str,
)
def test_a_reward_function_that_cannot_be_loaded_is_refused(run, tmp_path, content, message):
    path = tmp_path / "reward.py"
    if content is not None:
        path.write_text(content)
    refused = refusal(run, f"reward.custom_reward_function.path={path}")
    assert refused.startswith(f"reward.custom_reward_function.path={path}: ") and message in refused


def test_given_verls_own_reward_functions_when_a_data_source_has_none_then_it_is_named(run, tmp_path):
    content = [*rows(15, source="math_dapo"), *rows(1, source="riddles")]
    path = write_parquet(tmp_path / "train.parquet", content)
    val = write_parquet(tmp_path / "val.parquet", rows(1, source="aime_2024"))
    refused = refusal(
        run, f"data.train_files={path}", f"data.val_files={val}", "reward.custom_reward_function.path=null"
    )
    assert refused.startswith("data_source=riddles: the reward function raised NotImplementedError")


def test_given_verls_own_reward_functions_when_they_know_all_data_sources_then_they_are_accepted(run, tmp_path):
    path = write_parquet(tmp_path / "train.parquet", rows(16, source="math_dapo"))
    val = write_parquet(tmp_path / "val.parquet", rows(1, source="aime_2024"))
    check_all(run(f"data.train_files={path}", f"data.val_files={val}", "reward.custom_reward_function.path=null"))
